{{/* Reference of an image: `include "lockstep.image" (list . "manager")`. */}}
{{- define "lockstep.image" -}}
{{- $root := index . 0 -}}
{{- $program := index . 1 -}}
{{- $images := $root.Values.images -}}
{{- $digest := get $images.digests $program -}}
{{- $tag := $images.tag | default (printf "v%s" $root.Chart.AppVersion) -}}
{{ $images.prefix }}lockstep-{{ $program }}{{ if $digest }}@{{ $digest }}{{ else }}:{{ $tag }}{{ end }}
{{- end -}}

{{/* The manager's configuration. Keys of `config` replace those that follow from other values. */}}
{{- define "lockstep.config" -}}
{{- $agents := dict "namespace" .Values.agents.namespace -}}
{{- $supervisor := dict "image" (include "lockstep.image" (list . "run")) -}}
{{- mergeOverwrite (dict "agents" $agents "supervisor" $supervisor) (deepCopy .Values.config) | toYaml -}}
{{- end -}}

{{/* Labels by which selectors find managers and agents. An upgrade cannot change selectors. */}}
{{- define "lockstep.manager" -}}
app.kubernetes.io/name: lockstep
app.kubernetes.io/component: manager
{{- end -}}
{{- define "lockstep.agent" -}}
app.kubernetes.io/name: lockstep-agent
{{- end -}}

{{/*
Labels and annotations of an object: its own, those of every Helm chart, and the common values. In a conflict the first
win. `include "lockstep.metadata" (list . LABELS ANNOTATIONS)`, both as YAML.
*/}}
{{- define "lockstep.metadata" -}}
{{- $root := index . 0 -}}
{{- $chart := dict
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_")
  "app.kubernetes.io/instance" $root.Release.Name
  "app.kubernetes.io/managed-by" $root.Release.Service
  "app.kubernetes.io/part-of" "lockstep"
  "app.kubernetes.io/version" $root.Chart.AppVersion -}}
labels: {{- merge (index . 1 | fromYaml) $chart $root.Values.commonLabels | toYaml | nindent 2 }}
{{- with merge (index . 2 | fromYaml) $root.Values.commonAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The same for the pods of manager or agent: `include "lockstep.podMetadata" (list . "manager" VALUES ANNOTATIONS)`. */}}
{{- define "lockstep.podMetadata" -}}
{{- $root := index . 0 -}}
{{- $program := index . 1 -}}
{{- $values := index . 2 -}}
{{- $labels := include (printf "lockstep.%s" $program) $root | fromYaml -}}
{{- $annotations := dict "kubectl.kubernetes.io/default-container" $program -}}
labels: {{- merge $labels $values.podLabels $root.Values.commonLabels | toYaml | nindent 2 }}
annotations: {{- merge $annotations (index . 3 | fromYaml) $values.podAnnotations $root.Values.commonAnnotations | toYaml | nindent 2 }}
{{- end -}}

{{/* What a pod's spec has from values: `include "lockstep.podSpec" (list . VALUES)`. */}}
{{- define "lockstep.podSpec" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
priorityClassName: {{ $values.priorityClassName | quote }}
{{- with $root.Values.images.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $values.hostNetwork }}
hostNetwork: true
{{- end }}
{{- with $values.dnsPolicy }}
dnsPolicy: {{ . }}
{{- end }}
{{- with $values.podSecurityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What a container has from values: `include "lockstep.container" (list . VALUES PORTS)`. */}}
{{- define "lockstep.container" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
{{- $ports := index . 2 -}}
{{- with $root.Values.images.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
ports:
- {name: health, containerPort: {{ $ports.health }}}
- {name: metrics, containerPort: {{ $ports.metrics }}}
livenessProbe: {{- merge (dict "httpGet" (dict "path" "/healthz" "port" "health")) $values.livenessProbe | toYaml | nindent 2 }}
readinessProbe: {{- merge (dict "httpGet" (dict "path" "/readyz" "port" "health")) $values.readinessProbe | toYaml | nindent 2 }}
resources: {{- toYaml $values.resources | nindent 2 }}
securityContext: {{- toYaml $values.securityContext | nindent 2 }}
{{- end -}}

{{/*
Objects of files that no value changes: copies of those of config/ and crds/, with the namespaces of the release and
the common labels. `include "lockstep.objects" (list . "files/rbac/*.yaml" ANNOTATIONS)`.
*/}}
{{- define "lockstep.objects" -}}
{{- $root := index . 0 -}}
{{- $annotations := index . 2 -}}
{{- range $path, $_ := $root.Files.Glob (index . 1) -}}
{{- $text := $root.Files.Get $path
  | replace "namespace: lockstep-system" (printf "namespace: %q" $root.Release.Namespace)
  | replace "namespace: lockstep-agent" (printf "namespace: %q" $root.Values.agents.namespace) -}}
{{- range splitList "\n---\n" $text -}}
{{- $object := fromYaml . -}}
{{- $metadata := include "lockstep.metadata" (list $root (toYaml $object.metadata.labels) $annotations) | fromYaml }}
---
# {{ $path }}
{{ set $object "metadata" (merge $metadata $object.metadata) | toYaml }}
{{- end -}}
{{- end -}}
{{- end -}}
