#!/usr/bin/env bash
# Generates the OpenAPI definitions of the built-in types from k8s.io/api into
# this folder (git-ignored). build.sh calls it; call it by hand to work on the
# module in place with `go run` or an editor.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
header=$(mktemp)
trap 'rm -f "$header"' EXIT
# scheduling/v1alpha3 is not served, but batch/v1 Job refers to it.
packages="k8s.io/apimachinery/pkg/apis/meta/v1 k8s.io/apimachinery/pkg/runtime k8s.io/apimachinery/pkg/version
k8s.io/apimachinery/pkg/api/resource k8s.io/apimachinery/pkg/util/intstr
k8s.io/api/core/v1 k8s.io/api/apps/v1 k8s.io/api/batch/v1 k8s.io/api/coordination/v1 k8s.io/api/policy/v1
k8s.io/api/scheduling/v1 k8s.io/api/scheduling/v1beta1 k8s.io/api/scheduling/v1alpha3 k8s.io/api/discovery/v1
k8s.io/api/rbac/v1 k8s.io/api/admissionregistration/v1 k8s.io/api/events/v1 k8s.io/api/autoscaling/v1
k8s.io/api/authentication/v1 k8s.io/api/authorization/v1 k8s.io/api/storage/v1 k8s.io/api/flowcontrol/v1"
readonly_packages=()
for package in $packages; do readonly_packages+=(--readonly-pkg "$package"); done
# --output-model-name-file makes the map keys the types' OpenAPIModelName(), which
# the libraries look up; --readonly-pkg keeps the generator out of the module cache.
# shellcheck disable=SC2086
go tool openapi-gen --go-header-file "$header" --output-dir . --output-pkg lockstep/tests/plane/openapi \
  --output-file zz_generated.openapi.go --output-model-name-file zz_generated.model_name.go \
  "${readonly_packages[@]}" --report-filename /dev/null $packages
cat > zz_generated.register.go <<'GO'
package openapi

func init() { Definitions = GetOpenAPIDefinitions }
GO
