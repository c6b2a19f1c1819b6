# What the run-books of docs/operations.md type, on Kubernetes: read this file into a shell.
# POD is the pod of the alert's instance, NAMESPACE its namespace.
log() { kubectl -n $NAMESPACE logs $POD -c delayservice --since "${2:-1h}" | grep -E "$1" | tail -n 20; }
metrics() { kubectl get --raw /api/v1/namespaces/$NAMESPACE/pods/$POD:9464/proxy/metrics | grep -E "$1"; }
delayservice() { kubectl -n $NAMESPACE exec $POD -c delayservice -- delayservice "$@"; }

# systemctl restart delayservice:  kubectl -n $NAMESPACE delete pod $POD
#   of a sidecar:                  kubectl -n $NAMESPACE exec $POD -c delayservice -- sh -c 'kill 1'
# stop, move a folder, start:      kubectl -n $NAMESPACE exec $POD -c delayservice -- rm -r /var/lib/delayservice/wheel
#                                  and restart
# the log before a restart:        kubectl -n $NAMESPACE logs $POD -c delayservice --previous
# other commands, as df:           kubectl -n $NAMESPACE exec $POD -c delayservice -- df ...
# a lost machine, with the chart:  kubectl -n $NAMESPACE delete pvc/state-$POD --wait=false
#                                  kubectl -n $NAMESPACE delete pod/$POD --force --grace-period=0
#                                  (its kubelet does not answer; the node is rebuilt from Kafka)
