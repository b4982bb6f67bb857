package main

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/jpeg"
	"os"
	"path/filepath"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"steadyfit/data"
)

// tfRecord returns a record of a TFRecord file: a tf.train.Example with one text or several integers
// per feature.
func tfRecord(features map[string]any) []byte {
	message := func(field protowire.Number, content []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), content)
	}
	var all []byte
	for name, v := range features {
		var feature []byte
		switch v := v.(type) {
		case []byte:
			feature = message(1, message(1, v))
		case []int64:
			var list []byte
			for _, n := range v {
				list = protowire.AppendVarint(list, uint64(n))
			}
			feature = message(3, message(1, list))
		}
		all = append(all, message(1, append(message(1, []byte(name)), message(2, feature)...))...)
	}
	content := message(1, all)
	checksum := func(b []byte) []byte {
		sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
		return binary.LittleEndian.AppendUint32(b, (sum>>15|sum<<17)+0xa282ead8)
	}
	return append(checksum(binary.LittleEndian.AppendUint64(nil, uint64(len(content)))), checksum(content)...)
}

// digitsRecords writes the training part of the built-in digits to two TFRecord files each: as JPEG
// images to jpeg-*, and as pixels to pixels-*.
func digitsRecords(dir string) error {
	train, _, err := data.Builtin("digits")
	if err != nil {
		return err
	}
	files := map[string][]byte{}
	i := 0
	for b, err := range train.Batches(data.Pass{Batch: 1}) {
		if err != nil {
			return err
		}
		x, label := b.Fields[0].Values.([]uint8), b.Fields[1].Values.([]int64)
		pixels, grey := make([]int64, 64), image.NewGray(image.Rect(0, 0, 8, 8))
		for p, v := range x {
			pixels[p], grey.Pix[p] = int64(v), uint8(min(int(v)*16, 255))
		}
		var picture bytes.Buffer
		if err := jpeg.Encode(&picture, grey, &jpeg.Options{Quality: 100}); err != nil {
			return err
		}
		shard := "-0000" + strconv.Itoa(2*i/train.Len()) + "-of-00002.tfrecord"
		files["jpeg"+shard] = append(files["jpeg"+shard], tfRecord(map[string]any{
			"image/encoded": picture.Bytes(), "image/class/label": label, "image/name": []byte(strconv.Itoa(i)),
		})...)
		files["pixels"+shard] = append(files["pixels"+shard], tfRecord(map[string]any{"x": pixels, "label": label})...)
		i++
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o666); err != nil {
			return err
		}
	}
	return nil
}
