// Package openapi holds the OpenAPI definitions of the built-in types. They are
// generated from k8s.io/api at build (generate.sh) and not committed.
package openapi

import "k8s.io/kube-openapi/pkg/common"

// Definitions is set by the generated code; it is nil in a tree where
// generate.sh has not run.
var Definitions common.GetOpenAPIDefinitions
