// Package bundle reads the names, types and shapes of the tensors in a TensorFlow checkpoint from its index
// (prefix.index), without TensorFlow, and checks the sizes of its files.
//
// The index is a sorted table in LevelDB's format (tensorflow/core/lib/io/format.cc, table_builder.cc):
// blocks of keys with shared prefixes, an index block with their locations, and a footer with the location
// of the index block. Values are BundleEntryProto (tensor_bundle.proto); the empty key has the header.
// TensorFlow has not compressed the blocks of a bundle since 1.2 (tensor_bundle.cc), so compressed blocks are
// an error.
package bundle

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"steadyfit/internal/dtype"
	"steadyfit/internal/files"
	"steadyfit/internal/tfproto"
	"steadyfit/internal/wire"
)

// ErrDamaged means that an index is damaged or not a table, or that a data file is too short.
var ErrDamaged = errors.New("damaged checkpoint")

// Tensor is the index entry of a tensor.
type Tensor struct {
	DType dtype.DType
	Shape []int64
	// Checksum is the masked CRC-32C of the values.
	Checksum uint32
}

func (t Tensor) String() string { return fmt.Sprintf("%v %v", t.DType, t.Shape) }

const (
	footerBytes = 48
	magic       = 0xdb4775248b80fb57
	// trailerBytes is the size of a block's trailer: compression type and checksum.
	trailerBytes = 5
)

// ObjectGraph is the name of the entry that describes the Python objects of the variables. It is not a
// variable.
const ObjectGraph = "_CHECKPOINTABLE_OBJECT_GRAPH"

// MaxBytes is the maximum size of an index, which has some hundred bytes per tensor.
const MaxBytes = 64 << 20

// mostNames limits the total length of all names. Names share prefixes in the index, so they may be much
// longer than the index.
const mostNames = 64 << 20

// Read returns the tensors of the checkpoint with a file prefix, by name.
func Read(prefix string) (map[string]Tensor, error) {
	path := prefix + ".index"
	table, err := files.Read(path, MaxBytes)
	if err != nil {
		return nil, fmt.Errorf("index of a checkpoint: %w", err)
	}
	tensors, err := parse(table)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w; copy or write it again", path, ErrDamaged, err)
	}
	return tensors, nil
}

// Sum returns a hash of some tensors of a checkpoint: of their names, types, shapes and the checksums of
// their values. It is empty without names, or if one of them is missing.
func Sum(tensors map[string]Tensor, names []string) string {
	sum := sha256.New()
	for _, name := range slices.Sorted(slices.Values(names)) {
		t, there := tensors[name]
		if !there {
			return ""
		}
		fmt.Fprintf(sum, "%q %v %v %08x\n", name, t.DType, t.Shape, t.Checksum)
	}
	if len(names) == 0 {
		return ""
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func parse(table []byte) (map[string]Tensor, error) {
	tensors := map[string]Tensor{}
	names := 0
	_, err := scan(table, func(key []byte, entry *tfproto.BundleEntryProto) error {
		if string(key) == ObjectGraph {
			return nil
		}
		if names += len(key); names > mostNames {
			return fmt.Errorf("the names of its tensors have more than %d bytes", mostNames)
		}
		t := Tensor{DType: dtype.DType(entry.Dtype), Checksum: entry.Crc32C}
		for _, d := range entry.GetShape().GetDim() {
			t.Shape = append(t.Shape, d.Size)
		}
		tensors[string(key)] = t
		return nil
	})
	return tensors, err
}

// Check compares the sizes of a checkpoint's files with its index, the content of prefix.index.
func Check(prefix string, index []byte) error {
	ends, err := scan(index, func([]byte, *tfproto.BundleEntryProto) error { return nil })
	if err != nil {
		return fmt.Errorf("%s.index: %w: %w; copy or write it again", prefix, ErrDamaged, err)
	}
	for shard, want := range ends {
		if want == 0 {
			continue // the data file has no values
		}
		path := fmt.Sprintf("%s.data-%05d-of-%05d", prefix, shard, len(ends))
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if have := info.Size(); have < want {
			return fmt.Errorf("%s: %w: it has %d bytes, but its index expects %d; copy or write it again", path, ErrDamaged,
				have, want)
		}
	}
	return nil
}

// mostShards is the largest number of data files that an index may have. TensorFlow writes one per
// machine.
const mostShards = 1 << 16

// scan calls each for the entries of an index, and returns the end of the last value in each data file.
func scan(table []byte, each func(key []byte, entry *tfproto.BundleEntryProto) error) (ends []int64, err error) {
	if len(table) < footerBytes || binary.LittleEndian.Uint64(table[len(table)-8:]) != magic {
		return nil, errors.New("it has no table footer")
	}
	footer := table[len(table)-footerBytes:]
	_, rest, err := handle(footer) // the metadata block, which is empty
	if err != nil {
		return nil, err
	}
	where, _, err := handle(rest)
	if err != nil {
		return nil, err
	}
	var end uint64 // end of the previous block
	err = block(table, where, func(_, value []byte) error {
		at, _, err := handle(value)
		if err != nil {
			return err
		}
		// A damaged index could list the same block many times.
		if at.from < end {
			return fmt.Errorf("the block at %d overlaps the block before it", at.from)
		}
		end = at.from + at.size
		return block(table, at, func(key, value []byte) error {
			if len(key) == 0 {
				var header tfproto.BundleHeaderProto
				if err := proto.Unmarshal(value, &header); err != nil {
					return fmt.Errorf("header: %w", err)
				}
				n := header.GetNumShards()
				if n < 0 || n > mostShards {
					return fmt.Errorf("header: invalid number of data files: %d", n)
				}
				ends = make([]int64, n)
				return nil
			}
			var entry tfproto.BundleEntryProto
			if err := proto.Unmarshal(value, &entry); err != nil {
				return fmt.Errorf("entry of a tensor: %w", err)
			}
			// The header comes first, since its key is empty.
			i, end := int(entry.ShardId), entry.Offset+entry.Size
			if i < 0 || i >= len(ends) || entry.Offset < 0 || entry.Size < 0 || end < 0 {
				return fmt.Errorf("a tensor has the invalid location of %d bytes at %d in file %d of %d", entry.Size, entry.Offset,
					i, len(ends))
			}
			ends[i] = max(ends[i], end)
			return each(key, &entry)
		})
	})
	return ends, err
}

type span struct{ from, size uint64 }

var errVarint = errors.New("a number is truncated")

func handle(b []byte) (s span, rest []byte, err error) {
	if s.from, b, err = number(b); err != nil {
		return s, nil, err
	}
	s.size, b, err = number(b)
	return s, b, err
}

func number(b []byte) (uint64, []byte, error) {
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, errVarint
	}
	return v, b[n:], nil
}

// block verifies a block's checksum and calls each for its keys and values.
func block(table []byte, s span, each func(key, value []byte) error) error {
	n := uint64(len(table))
	if s.size < 4 || s.from > n || s.size > n || s.from+s.size+trailerBytes > n {
		return fmt.Errorf("the block of %d bytes at %d is outside the file", s.size, s.from)
	}
	b, trailer := table[s.from:s.from+s.size], table[s.from+s.size:]
	if trailer[0] != 0 {
		return fmt.Errorf("the block at %d is compressed with type %d; expected no compression", s.from, trailer[0])
	}
	if sum, want := wire.Checksum(table[s.from:s.from+s.size+1]), binary.LittleEndian.Uint32(trailer[1:]); sum != want {
		return fmt.Errorf("the block at %d has the checksum %08x, expected %08x", s.from, sum, want)
	}
	// A block ends with the positions of complete keys and their number.
	restarts := uint64(binary.LittleEndian.Uint32(b[len(b)-4:]))
	if 4*restarts+4 > s.size {
		return fmt.Errorf("the block at %d has %d restarts, more than fit in it", s.from, restarts)
	}
	b = b[:s.size-4-4*restarts]
	var key []byte
	for len(b) > 0 {
		var sizes [3]uint64 // bytes shared with the previous key, rest of the key, value
		for i := range sizes {
			var err error
			if sizes[i], b, err = number(b); err != nil {
				return err
			}
		}
		shared, own, value := sizes[0], sizes[1], sizes[2]
		if left := uint64(len(b)); shared > uint64(len(key)) || own > left || value > left-own {
			return fmt.Errorf("a key of the block at %d extends beyond the block", s.from)
		}
		key = append(key[:shared], b[:own]...)
		if err := each(key, b[own:own+value]); err != nil {
			return err
		}
		b = b[own+value:]
	}
	return nil
}

const listed = 5

// Differences describes the first differences between the tensors of a checkpoint and the wanted
// tensors, or returns "".
func Differences(want, have map[string]Tensor) string {
	var found []string
	names := maps.Clone(want)
	maps.Copy(names, have)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		w, wanted := want[name]
		h, there := have[name]
		switch {
		case !there:
			found = append(found, fmt.Sprintf("%s (%v) is missing", name, w))
		case !wanted:
			found = append(found, fmt.Sprintf("%s (%v) is not in the model", name, h))
		case w.DType != h.DType || !slices.Equal(w.Shape, h.Shape):
			found = append(found, fmt.Sprintf("%s is %v, expected %v", name, h, w))
		}
	}
	if more := len(found) - listed; more > 0 {
		found = append(found[:listed], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(found, ", ")
}
