{{- define "onerule.labels" -}}
app.kubernetes.io/name: onerule
{{- end }}
{{- define "onerule.subject" -}}
- kind: ServiceAccount
  name: oneruled
  namespace: {{ .Release.Namespace }}
{{- end }}
