/* Preloaded into a process whose wall clock shall differ from the machine's, or whose machine was
 * suspended.
 *
 * The file that WALLCLOCK_FILE names holds two native int64_t, in nanoseconds: the difference, and
 * the time in suspend. It is mapped, so that a step is seen at the next look at a clock. In suspend
 * CLOCK_MONOTONIC stands still, and CLOCK_BOOTTIME goes on.
 *
 * libfaketime leaves C11's cnd_timedwait alone. librdkafka computes its deadline from the wall
 * clock, so each of its waits in a process 20 s ahead lasted 20 s too long.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000LL
#define YEAR_2000_S 946684800 /* a later deadline is one of the wall clock */

static const volatile int64_t none[2];
static const volatile int64_t *shift_ns = none; /* wall clock, suspend */
static int (*real_cnd)(cnd_t *, mtx_t *, const struct timespec *);
static int (*real_sem)(sem_t *, clockid_t, const struct timespec *);
static int (*real_cond)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("WALLCLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *seen = file < 0 ? MAP_FAILED : mmap(NULL, 16, PROT_READ, MAP_SHARED, file, 0);
    if (seen == MAP_FAILED)
        abort();
    close(file);
    real_cnd = (typeof(real_cnd))dlsym(RTLD_NEXT, "cnd_timedwait");
    real_cond = (typeof(real_cond))dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    real_sem = (typeof(real_sem))dlsym(RTLD_NEXT, "sem_clockwait");
    shift_ns = seen;
}

static struct timespec moved(struct timespec at, int64_t by_ns) {
    int64_t ns = at.tv_sec * SECOND_NS + at.tv_nsec + by_ns;
    return (struct timespec){.tv_sec = ns / SECOND_NS, .tv_nsec = ns % SECOND_NS};
}

static int is_monotonic(clockid_t clock) {
    return clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_MONOTONIC_RAW;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        *at = moved(*at, shift_ns[0]);
    else if (!failed && is_monotonic(clock))
        *at = moved(*at, -shift_ns[1]);
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    *at = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

static struct timespec of_the_machine(const struct timespec *deadline) {
    return moved(*deadline, deadline->tv_sec > YEAR_2000_S ? -shift_ns[0] : shift_ns[1]);
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict until) {
    struct timespec deadline = of_the_machine(until);
    return real_cnd(condition, mutex, &deadline);
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    struct timespec deadline = of_the_machine(until);
    return real_cond(condition, mutex, &deadline);
}

/* Python's locks wait so. */
int sem_clockwait(sem_t *restrict semaphore, clockid_t clock, const struct timespec *restrict until) {
    struct timespec deadline = of_the_machine(until);
    return real_sem(semaphore, clock, &deadline);
}
