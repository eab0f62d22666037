{{/*
What the operator may do with objects of a namespace; docs/permissions.md says why, and a test holds the two and the
operator's own list (operator/sglpool/kube/rights.py) together.
*/}}
{{- define "sglpool.rules" -}}
- apiGroups: [sglpool.io]
  resources: [inferencepools]
  verbs: [get, list, watch]
- apiGroups: [sglpool.io]
  resources: [inferencepools/status]
  verbs: [patch]
- apiGroups: [sglpool.io]
  resources: [inferencepools/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [statefulsets, deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [list, patch]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [""]
  resources: [services, serviceaccounts, configmaps]
  verbs: [get, list, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, create, patch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
{{- end }}

{{- define "sglpool.subject" -}}
- kind: ServiceAccount
  name: {{ include "sglpool.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}
