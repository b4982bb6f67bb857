// Package tfproto has the protobuf messages of TensorFlow that this module reads and writes.
package tfproto

//go:generate go run github.com/bufbuild/buf/cmd/buf@v1.57.2 generate
