package data

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/rle"
	"github.com/parquet-go/parquet-go/format"
)

// oldDictionary is the encoding PLAIN_DICTIONARY of old writers. A dictionary with this encoding has
// plain values, and a page of data has indexes into the dictionary.
const oldDictionary format.Encoding = 2

// checkDictionary checks a dictionary. Its values are always plain.
func (c *columnChunk) checkDictionary(h *format.DictionaryPageHeader, raw []byte) error {
	c.hasDictionary = true
	if h.Encoding != format.Plain && h.Encoding != oldDictionary {
		return c.unsupported(h.Encoding)
	}
	if _, err := c.checkValues(format.Plain, raw, int(h.NumValues)); err != nil {
		return err
	}
	column := strings.Join(c.meta.PathInSchema, ".")
	if c.leaf.Type().Kind() != parquet.ByteArray || h.NumValues > maxCategories || !slices.Contains(c.ordered, column) {
		return nil
	}
	var values []string
	for len(raw) > 0 {
		value, rest, err := prefixed(raw)
		if err != nil {
			return err
		}
		values, raw = append(values, string(value)), rest
	}
	c.keepOrder(column, values)
	return nil
}

// checkData checks the levels and the values of a page of data. It returns the memory as the method
// content does.
func (c *columnChunk) checkData(h *format.PageHeader, levels, raw []byte) (memory int64, err error) {
	v1, v2 := &h.DataPageHeader.V, &h.DataPageHeaderV2.V
	n, encoding := int(v2.NumValues), v2.Encoding
	var repetition, definition []byte
	highestRepetition, highestDefinition := c.leaf.MaxRepetitionLevel(), c.leaf.MaxDefinitionLevel()
	switch h.Type {
	case format.DataPageV2:
		repetition, definition = levels[:v2.RepetitionLevelsByteLength], levels[v2.RepetitionLevelsByteLength:]
	case format.DataPage:
		n, encoding = int(v1.NumValues), v1.Encoding
		if repetition, raw, err = levelsBefore(raw, highestRepetition, v1.RepetitionLevelEncoding); err != nil {
			return 0, err
		}
		if definition, raw, err = levelsBefore(raw, highestDefinition, v1.DefinitionLevelEncoding); err != nil {
			return 0, err
		}
	default:
		return 0, fmt.Errorf("a page of type %s is %w; write the file again without it", h.Type, ErrUnsupported)
	}
	if err := c.decodeLevels(repetition, highestRepetition, n); err != nil {
		return 0, err
	}
	c.addRows(n)
	if err := c.decodeLevels(definition, highestDefinition, n); err != nil {
		return 0, err
	}
	nulls := len(c.levels) - bytes.Count(c.levels, []byte{byte(highestDefinition)})
	if h.Type == format.DataPageV2 && int(v2.NumNulls) != nulls {
		return 0, fmt.Errorf("%d nulls, but its header states %d: %w", nulls, v2.NumNulls, ErrFormat)
	}
	c.values += n - nulls
	return c.checkValues(encoding, raw, n-nulls)
}

// levelsBefore splits a page into its levels, which have their length before them, and the rest.
func levelsBefore(raw []byte, highest int, encoding format.Encoding) (levels, rest []byte, err error) {
	switch {
	case highest == 0:
		return nil, raw, nil
	case encoding != format.RLE:
		return nil, nil, fmt.Errorf("levels with the encoding %s are %w; write the file again with a current writer", encoding, ErrUnsupported)
	}
	return prefixed(raw)
}

// prefixed splits raw into bytes that have their length before them, and the rest.
func prefixed(raw []byte) (content, rest []byte, err error) {
	if len(raw) < 4 || int64(binary.LittleEndian.Uint32(raw)) > int64(len(raw)-4) {
		return nil, nil, fmt.Errorf("levels or values that exceed its %d bytes: %w", len(raw), ErrFormat)
	}
	n := binary.LittleEndian.Uint32(raw)
	return raw[4 : 4+n], raw[4+n:], nil
}

// decodeLevels decodes n levels from runs to p.levels, which is empty if the highest level is 0.
func (p *pageChecker) decodeLevels(runs []byte, highest, n int) (err error) {
	if p.levels = p.levels[:0]; highest == 0 {
		return nil
	}
	width := bits.Len(uint(highest))
	if err := checkRuns(runs, width, n); err != nil {
		return err
	}
	p.levels, err = (&rle.Encoding{BitWidth: width}).DecodeLevels(p.levels, runs)
	if err == nil && len(p.levels) < n {
		err = fmt.Errorf("%d values in runs instead of %d: %w", len(p.levels), n, ErrFormat)
	}
	p.levels = p.levels[:min(n, len(p.levels))]
	return err
}

// addRows finds the longest row from the levels of repetition of n values. A row may begin in an earlier page.
func (c *columnChunk) addRows(n int) {
	c.latest, c.begins = n, false
	if c.leaf.MaxRepetitionLevel() == 0 {
		c.longest, c.begins = 1, n > 0
	}
	for _, level := range c.levels {
		if level == 0 {
			c.row, c.begins = 0, true
		}
		c.row++
		c.longest = max(c.longest, c.row)
	}
}

// checkRuns returns an error if runs of values with a width in bits have more than n values. Writers may
// fill the last run.
func checkRuns(runs []byte, width, n int) error {
	const fill = 1024
	for left := uint64(n + fill); len(runs) > 0; {
		head, size := binary.Uvarint(runs)
		if size <= 0 {
			return fmt.Errorf("a damaged run of values: %w", ErrFormat)
		}
		runs = runs[size:]
		count, length := head>>1, (width+7)/8
		if count > left {
			return tooMany(n)
		}
		if head&1 != 0 {
			length = int(count) * width
			count *= 8
		}
		if count > left {
			return tooMany(n)
		}
		if count > 0 {
			if length > len(runs) {
				return fmt.Errorf("a run of values that ends early: %w", ErrFormat)
			}
			left -= count
			runs = runs[length:]
		}
	}
	return nil
}

func tooMany(n int) error {
	return fmt.Errorf("runs with more values than the %d that its header states: %w", n, ErrFormat)
}

// checkValues returns an error unless raw has n values. It returns the memory as the method content
// does.
func (c *columnChunk) checkValues(encoding format.Encoding, raw []byte, n int) (memory int64, err error) {
	kind, width := c.leaf.Type().Kind(), valueBits(c.leaf.Type())
	switch encoding {
	case format.RLEDictionary, oldDictionary:
		return 0, c.checkIndexes(raw, n)
	case format.Plain, format.ByteStreamSplit:
		if texts := kind == parquet.ByteArray && encoding == format.Plain; texts || kind < 0 || width > 0 {
			return 0, checkPlain(raw, kind, width, n)
		}
	case format.RLE:
		if kind == parquet.Boolean {
			return c.addFlags(raw, n)
		}
	case format.DeltaBinaryPacked:
		if kind == parquet.Int32 || kind == parquet.Int64 {
			_, err = afterDeltas(raw, n, width)
			return width / 8 * int64(n), err
		}
	case format.DeltaLengthByteArray:
		if kind == parquet.ByteArray {
			_, err = c.checkLengths(raw, n)
			return 0, err
		}
	case format.DeltaByteArray:
		if kind == parquet.ByteArray || width > 0 {
			return c.checkShared(raw, width, n)
		}
	}
	return 0, c.unsupported(encoding)
}

// checkPlain returns an error unless raw has n values of the given width in bits, or n texts that each
// follow their length.
func checkPlain(raw []byte, kind parquet.Kind, width int64, n int) (err error) {
	have := n
	switch {
	case kind == parquet.ByteArray:
		for have = 0; len(raw) > 0; have++ {
			if _, raw, err = prefixed(raw); err != nil {
				return err
			}
		}
	case kind >= 0: // a column without a type has nulls only
		have = int(min(int64(n), 8*int64(len(raw))/width))
	}
	if have != n {
		return fmt.Errorf("%d values, but its header and levels state %d: %w", have, n, ErrFormat)
	}
	return nil
}

// valueBits returns the size of a value; 0 means that it varies.
func valueBits(t parquet.Type) int64 {
	switch t.Kind() {
	case parquet.Boolean:
		return 1
	case parquet.Int32, parquet.Float:
		return 32
	case parquet.Int64, parquet.Double:
		return 64
	case parquet.Int96:
		return 96
	case parquet.FixedLenByteArray:
		return 8 * int64(t.Length())
	}
	return 0
}

func (c *columnChunk) unsupported(encoding format.Encoding) error {
	return fmt.Errorf("the encoding %s of %s is %w; write the file again with another encoding", encoding, c.leaf.Type().Kind(), ErrUnsupported)
}

// checkIndexes checks n indexes into a dictionary. The library itself checks that they are in range.
func (c *columnChunk) checkIndexes(raw []byte, n int) error {
	switch {
	case !c.hasDictionary:
		return fmt.Errorf("no dictionary before it: %w", ErrFormat)
	case len(raw) == 0:
		return nil
	case raw[0] > 32:
		return fmt.Errorf("numbers of %d bits in a dictionary: %w", raw[0], ErrFormat)
	}
	return checkRuns(raw[1:], int(raw[0]), n)
}

// addFlags decodes booleans in runs. The library would decode them wrongly unless the length of each
// run is a multiple of eight, as its own writer makes it.
func (c *columnChunk) addFlags(raw []byte, n int) (memory int64, err error) {
	runs, _, err := prefixed(raw)
	if err == nil {
		err = c.decodeLevels(runs, 1, n)
	}
	if err != nil {
		return 0, err
	}
	for _, flag := range c.levels {
		c.flags = append(c.flags, flag&1)
	}
	return int64(len(c.flags)), nil
}

// checkLengths checks n texts, which follow all their lengths, and returns the sum of the lengths.
func (p *pageChecker) checkLengths(raw []byte, n int) (sum int64, err error) {
	sum, rest, err := p.sumLengths(raw, n)
	if err == nil && sum > int64(len(rest)) {
		err = fmt.Errorf("values of %d bytes in %d: %w", sum, len(rest), ErrFormat)
	}
	return sum, err
}

// checkShared checks n values that are stored without the beginning that each shares with the value
// before it, and returns the sum of their sizes. The lengths of the shared beginnings, and of the
// remaining parts, precede the values.
func (p *pageChecker) checkShared(raw []byte, width int64, n int) (memory int64, err error) {
	shared, rest, err := p.sumLengths(raw, n)
	if err != nil {
		return 0, err
	}
	own, err := p.checkLengths(rest, n)
	switch shared += own; {
	case err != nil:
	case width > 0 && shared != width/8*int64(n):
		err = fmt.Errorf("values of %d bytes instead of %d: %w", shared, width/8*int64(n), ErrFormat)
	case shared > math.MaxInt32:
		err = fmt.Errorf("%w: values of %d bytes; write smaller pages", ErrTooLarge, shared)
	}
	return shared, err
}

// sumLengths returns the sum of n lengths at the beginning of raw, and the rest.
func (p *pageChecker) sumLengths(raw []byte, n int) (sum int64, rest []byte, err error) {
	if rest, err = afterDeltas(raw, n, 32); err != nil {
		return 0, nil, err
	}
	p.lengths, err = parquet.DeltaBinaryPacked.DecodeInt32(p.lengths, raw[:len(raw)-len(rest)])
	for _, length := range p.lengths {
		if sum += int64(length); length < 0 {
			return 0, nil, fmt.Errorf("a length of %d: %w", length, ErrFormat)
		}
	}
	return sum, rest, err
}

// afterDeltas returns the bytes of raw after n numbers of width bits with the encoding
// DELTA_BINARY_PACKED. The numbers have a header and blocks. The widths of the parts of a block
// determine its length.
func afterDeltas(raw []byte, n int, width int64) ([]byte, error) {
	var head [4]uint64 // the size of a block, the number of its parts, the number of all values, and the first value
	for i := range head {
		number, size := binary.Uvarint(raw)
		if size <= 0 {
			return nil, badDeltas("a header that ends early")
		}
		head[i], raw = number, raw[size:]
	}
	block, parts := head[0], head[1]
	const most = 1 << 16 // the limit of the library
	switch {
	case block == 0 || block > most || parts == 0 || parts > block || block%128 != 0 || block%parts != 0 || block/parts%32 != 0:
		return nil, badDeltas(fmt.Sprintf("%d parts of a block of %d numbers", parts, block))
	case head[2] != uint64(n):
		return nil, badDeltas(fmt.Sprintf("%d numbers instead of %d", head[2], n))
	}
	size := int(block / parts)
	for n--; n > 0; {
		_, least := binary.Varint(raw)
		if least <= 0 || len(raw)-least < int(parts) {
			return nil, badDeltas("a block that ends early")
		}
		widths := raw[least : least+int(parts)]
		raw = raw[least+int(parts):]
		for ; n > 0 && len(widths) > 0; n, widths = n-size, widths[1:] {
			if int64(widths[0]) > width {
				return nil, badDeltas(fmt.Sprintf("numbers of %d bits", widths[0]))
			}
			if (min(n, size)*int(widths[0])+7)/8 > len(raw) {
				return nil, badDeltas("a block that ends early")
			}
			raw = raw[min(size/8*int(widths[0]), len(raw)):]
		}
	}
	return raw, nil
}

func badDeltas(found string) error { return fmt.Errorf("delta encoding: %s: %w", found, ErrFormat) }
