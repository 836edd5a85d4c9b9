{{/* Reference of an image: `include "lockstep.image" (list . "manager")`. */}}
{{- define "lockstep.image" -}}
{{- $images := (index . 0).Values.images -}}
{{- $program := index . 1 -}}
{{- $digest := get $images.digests $program -}}
{{ $images.prefix }}lockstep-{{ $program }}{{ if $digest }}@{{ $digest }}{{ else }}:{{ $images.tag }}{{ end }}
{{- end -}}

{{/* The manager's configuration. Keys of `config` replace those that follow from other values. */}}
{{- define "lockstep.config" -}}
{{- $agents := dict "namespace" .Values.agents.namespace -}}
{{- $supervisor := dict "image" (include "lockstep.image" (list . "run")) -}}
{{- mergeOverwrite (dict "agents" $agents "supervisor" $supervisor) (deepCopy .Values.config) | toYaml -}}
{{- end -}}
