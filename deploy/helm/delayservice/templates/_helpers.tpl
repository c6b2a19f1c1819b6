{{- define "delayservice.name" -}}
{{- if contains "delayservice" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-delayservice" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "delayservice.selector" -}}
app.kubernetes.io/name: delayservice
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: node
{{- end }}

{{- define "delayservice.labels" -}}
{{ include "delayservice.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "zookeeper.name" -}}
{{ include "delayservice.name" . }}-zookeeper
{{- end }}

{{- define "zookeeper.selector" -}}
app.kubernetes.io/name: zookeeper
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: zookeeper
{{- end }}

{{- define "zookeeper.labels" -}}
{{ include "zookeeper.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "zookeeper.hosts" -}}
{{- $name := include "zookeeper.name" . }}
{{- if .Values.zookeeper.create }}
{{- range $i := until 3 }}{{ if $i }},{{ end }}{{ $name }}-{{ $i }}.{{ $name }}:2181{{ end }}
{{- else }}{{ .Values.zookeeper.hosts }}{{ end }}
{{- end }}

{{/* Ports that are named in lists of host:port, each once, as JSON. */}}
{{- define "delayservice.ports" -}}
{{- $ports := list }}
{{- range . }}{{ $ports = append $ports (regexFind "[0-9]+$" . | int) }}{{ end }}
{{- $ports | uniq | toJson }}
{{- end }}

{{- define "delayservice.protocol" -}}
{{- $kafka := .Values.kafka }}
{{- $tls := or $kafka.tls $kafka.ca.secret $kafka.clientCertificate.secret }}
{{- if $kafka.sasl.username }}{{ ternary "SASL_SSL" "SASL_PLAINTEXT" (not (empty $tls)) }}
{{- else if $tls }}SSL{{ end }}
{{- end }}

{{- define "delayservice.check" -}}
{{- $values := .Values }}
{{- if not $values.existingSecret }}
{{- fail "existingSecret: name a secret with the keys cluster_secret and admin_token (docs/kubernetes.md)" }}
{{- end }}
{{- if not $values.kafka.bootstrap }}
{{- fail "kafka.bootstrap: name the brokers, host:port" }}
{{- end }}
{{- if not (or $values.targets $values.config) }}
{{- fail "targets: list the topics that delayed records may go to, as [orders*]" }}
{{- end }}
{{- if and $values.zookeeper.create $values.zookeeper.hosts }}
{{- fail "zookeeper: set hosts or create, not both" }}
{{- end }}
{{- if and (gt (int $values.replicas) 1) (not (include "zookeeper.hosts" .)) }}
{{- fail "zookeeper.hosts: name an ensemble, or set zookeeper.create: nodes without one take slices from each other" }}
{{- end }}
{{- if gt (int $values.copies) (int $values.replicas) }}
{{- fail "copies: not more than replicas" }}
{{- end }}
{{- if and $values.kafka.sasl.username (not $values.kafka.sasl.secret) }}
{{- fail "kafka.sasl.secret: name the secret with the password of kafka.sasl.username" }}
{{- end }}
{{- end }}
