package main

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// bodies encodes objects of every kind with Kubernetes' own serializers. A record is the protobuf body and the JSON of
// the object that a real server makes of it, each after its length in four bytes, most significant first.
func bodies() ([]byte, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	serializer := protobuf.NewSerializer(scheme, scheme)
	var records bytes.Buffer
	for _, kind := range kinds(scheme) {
		for _, filler := range fillers(kind) {
			object := reflect.New(kind.goType)
			filler.fill(object.Elem(), nil)
			written := object.Interface().(runtime.Object)
			written.GetObjectKind().SetGroupVersionKind(kind.GroupVersionKind)
			var encoded bytes.Buffer
			if err := serializer.Encode(written, &encoded); err != nil {
				return nil, fmt.Errorf("encoding %s: %w", kind, err)
			}
			read, _, err := serializer.Decode(encoded.Bytes(), nil, reflect.New(kind.goType).Interface().(runtime.Object))
			if err != nil {
				return nil, fmt.Errorf("decoding %s: %w", kind, err)
			}
			// The serializer keeps the kind out of the object.
			read.GetObjectKind().SetGroupVersionKind(kind.GroupVersionKind)
			asJSON, err := json.Marshal(read)
			if err != nil {
				return nil, fmt.Errorf("marshalling %s: %w", kind, err)
			}
			for _, part := range [][]byte{encoded.Bytes(), asJSON} {
				_ = binary.Write(&records, binary.BigEndian, uint32(len(part)))
				records.Write(part)
			}
		}
	}
	var compressed bytes.Buffer
	writer, err := gzip.NewWriterLevel(&compressed, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := writer.Write(records.Bytes()); err != nil {
		return nil, err
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	return compressed.Bytes(), nil
}

// fillers make a full object, an empty one and two in between. Lists repeat their kind, so two of them will do.
func fillers(kind kind) []*filler {
	found := []*filler{{density: never}, {density: sometimes, state: 7}}
	if !strings.HasSuffix(kind.Kind, "List") {
		found = append(found, &filler{density: always}, &filler{density: sometimes, state: 1234567})
	}
	return found
}
