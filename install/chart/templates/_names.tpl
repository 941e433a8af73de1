{{- define "onerule.labels" -}}
app.kubernetes.io/name: onerule
{{- end }}
{{- define "onerule.subject" -}}
- kind: ServiceAccount
  name: oneruled
  namespace: {{ .Release.Namespace }}
{{- end }}
{{- /* What follows is of the pods of the daemon and of those that take onerule off the nodes: these
have to reach what the former wrote. */}}
{{- define "onerule.node" -}}
priorityClassName: system-node-critical
hostNetwork: true
dnsPolicy: Default
enableServiceLinks: false
nodeSelector:
  {{- toYaml .Values.nodeSelector | nindent 2 }}
{{- with .Values.tolerations }}
tolerations:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end }}
{{- define "onerule.image" -}}
image: {{ printf "%s:%s" .Values.image.repository .Values.image.tag }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}
{{- define "onerule.confinement" -}}
seccompProfile:
  type: RuntimeDefault
# The profile of runtimes forbids writing below /sys/fs.
appArmorProfile:
  type: Unconfined
# Containers that are not privileged may not write to folders of the node.
seLinuxOptions:
  type: spc_t
{{- end }}
{{- define "onerule.mounts" -}}
- name: run
  mountPath: /run/onerule
- name: sysctls
  mountPath: /host/proc/sys/net
{{- if ne .Values.endpointMetrics "off" }}
- name: bpf
  mountPath: /sys/fs/bpf
{{- end }}
{{- if .Values.podNetwork.enabled }}
- name: cni-bin
  mountPath: /opt/cni/bin
- name: cni-conf
  mountPath: /etc/cni/net.d
- name: cni-state
  mountPath: /var/lib/cni
{{- if .Values.podNetwork.networkManager }}
- name: network-manager
  mountPath: /etc/NetworkManager/conf.d
{{- end }}
{{- if .Values.podNetwork.networkd }}
- name: networkd-links
  mountPath: /etc/systemd/network
- name: networkd-conf
  mountPath: /etc/systemd/networkd.conf.d
{{- end }}
{{- end }}
{{- end }}
{{- define "onerule.volumes" -}}
# The socket of the commands, and what the plugin reads of the daemon.
- name: run
  hostPath:
    path: /run/onerule
    type: DirectoryOrCreate
# A container sees its own /proc/sys read-only.
- name: sysctls
  hostPath:
    path: /proc/sys/net
{{- if ne .Values.endpointMetrics "off" }}
# Counters that outlive the daemon.
- name: bpf
  hostPath:
    path: /sys/fs/bpf
{{- end }}
{{- with .Values.podNetwork }}
{{- if .enabled }}
- name: cni-bin
  hostPath:
    path: {{ .binDir }}
    type: DirectoryOrCreate
- name: cni-conf
  hostPath:
    path: {{ .confDir }}
    type: DirectoryOrCreate
# The plugin's own, and what host-local has in networks/.
- name: cni-state
  hostPath:
    path: /var/lib/cni
    type: DirectoryOrCreate
{{- if .networkManager }}
- name: network-manager
  hostPath:
    path: /etc/NetworkManager/conf.d
    type: DirectoryOrCreate
{{- end }}
{{- if .networkd }}
- name: networkd-links
  hostPath:
    path: /etc/systemd/network
    type: DirectoryOrCreate
- name: networkd-conf
  hostPath:
    path: /etc/systemd/networkd.conf.d
    type: DirectoryOrCreate
{{- end }}
{{- end }}
{{- end }}
{{- end }}
