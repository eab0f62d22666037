{{/* Names, labels and references that several templates share. */}}

{{- define "sglpool.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "sglpool.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- $name := include "sglpool.name" . }}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Fixed: routers and engines let the operator in by these two, and selectors can never change. */}}
{{- define "sglpool.selector" -}}
app.kubernetes.io/name: sglpool
app.kubernetes.io/component: operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sglpool.commonLabels" -}}
{{- with .Values.commonLabels }}
{{- toYaml . }}
{{ end -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: sglpool
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "sglpool.labels" -}}
{{ include "sglpool.commonLabels" . }}
{{ include "sglpool.selector" . }}
{{- end }}

{{- define "sglpool.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "sglpool.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "sglpool.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default (printf "v%s" .Chart.AppVersion) .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* Yes or nothing: whether pools of all namespaces are served. */}}
{{- define "sglpool.everywhere" -}}
{{- if not .Values.watchNamespaces }}yes{{ end }}
{{- end }}

{{- define "sglpool.readsNodes" -}}
{{- if kindIs "bool" .Values.rbac.nodes }}
{{- if .Values.rbac.nodes }}yes{{ end }}
{{- else }}
{{- include "sglpool.everywhere" . }}
{{- end }}
{{- end }}

{{- define "sglpool.aggregates" -}}
{{- if kindIs "bool" .Values.rbac.aggregate }}
{{- if .Values.rbac.aggregate }}yes{{ end }}
{{- else }}
{{- include "sglpool.everywhere" . }}
{{- end }}
{{- end }}

{{/* Command line of the operator; `helm test` runs it with --check. */}}
{{- define "sglpool.arguments" -}}
- operator
- --bind={{ .Values.operator.bind }}
{{- range .Values.watchNamespaces }}
- --namespace={{ . }}
{{- end }}
{{- if .Values.leaderElection }}
- --leader-elect
{{- end }}
{{- if .Values.gpuTypes }}
- --gpu-types=/etc/sglpool/gpu-types.yaml
{{- end }}
- --router-image={{ include "sglpool.image" . }}
- --workers={{ int .Values.operator.workers }}
- --resync={{ .Values.operator.resync }}
- --log-level={{ .Values.operator.logLevel }}
- --log-format={{ .Values.operator.logFormat }}
{{- end }}

{{- define "sglpool.environment" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- with .Values.proxy.http }}
- {name: HTTP_PROXY, value: {{ . | quote }}}
{{- end }}
{{- with .Values.proxy.https }}
- {name: HTTPS_PROXY, value: {{ . | quote }}}
{{- end }}
{{- if or .Values.proxy.http .Values.proxy.https .Values.proxy.noProxy }}
# The API server is never behind the proxy; a kubelet fills in its address.
- {name: NO_PROXY, value: {{ prepend (compact (list .Values.proxy.noProxy)) "$(KUBERNETES_SERVICE_HOST)" | join "," | quote }}}
{{- end }}
{{- with .Values.operator.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Pod Security level restricted. */}}
{{- define "sglpool.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "sglpool.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "sglpool.monitoredNamespaces" -}}
{{- if .Values.watchNamespaces }}
matchNames:
  {{- toYaml .Values.watchNamespaces | nindent 2 }}
{{- else }}
any: true
{{- end }}
{{- end }}
