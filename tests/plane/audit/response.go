package audit

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// describe fills in what the response says of the object that was written.
func describe(e *Entry, header http.Header, body []byte) {
	if header.Get("Content-Encoding") == "gzip" {
		body = gunzip(body)
	}
	var object metav1.PartialObjectMetadata
	var status metav1.Status
	switch {
	case bytes.HasPrefix(body, protobufPrefix):
		kind, raw := unwrapProtobuf(body)
		if kind == "Status" {
			_ = status.Unmarshal(raw) // what cannot be read is not described
		} else if !strings.HasSuffix(kind, "List") {
			_ = object.Unmarshal(raw) // metadata is field 1 of every object
		}
	default:
		var head metav1.TypeMeta
		_ = json.Unmarshal(body, &head)
		if head.Kind == "Status" {
			_ = json.Unmarshal(body, &status)
		} else if !strings.HasSuffix(head.Kind, "List") {
			_ = json.Unmarshal(body, &object)
		}
	}
	e.Reason = string(status.Reason)
	if status.Details != nil && e.UID == "" {
		e.UID = string(status.Details.UID)
	}
	if status.Details != nil && e.Name == "" {
		e.Name = status.Details.Name // of a create that was refused
	}
	if object.UID != "" {
		e.UID = string(object.UID)
	}
	if e.Name == "" {
		e.Name = object.Name
	}
	if object.ResourceVersion != "" && !gone(e, &object) {
		e.ResourceVersionAfter = object.ResourceVersion
	}
}

// gone says whether the object in a delete's response is the last of it: the
// server shows what it removed, or what it marked.
func gone(e *Entry, object *metav1.PartialObjectMetadata) bool {
	return e.Verb == "delete" && (object.DeletionTimestamp == nil ||
		len(object.Finalizers) == 0 && object.DeletionGracePeriodSeconds != nil && *object.DeletionGracePeriodSeconds == 0)
}

var protobufPrefix = []byte{'k', '8', 's', 0}

// unwrapProtobuf reads the envelope that every protobuf response comes in.
func unwrapProtobuf(body []byte) (kind string, raw []byte) {
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(body[len(protobufPrefix):]); err != nil {
		return "", nil
	}
	return envelope.Kind, envelope.Raw
}

func gunzip(body []byte) []byte {
	r, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		return nil
	}
	return plain
}
