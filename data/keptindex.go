package data

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"steadyfit/internal/files"
)

const (
	// keepFrom is the least total size of files whose index is kept. Smaller files are read in less
	// than a tenth of a second.
	keepFrom = 16 << 20
	// keepUnused is how long an index is kept without being used.
	keepUnused = 90 * 24 * time.Hour
	// keepTemporary is how long the temporary file of another process is kept. Its owner may be writing it.
	keepTemporary = 24 * time.Hour
	// keptMagic begins a kept index. Its number changes when the format or the meaning of an index
	// changes.
	keptMagic = "steadyfit index 1\n"
	// keptHead is the size of the part before the header: the magic, and the length and the CRC32C of
	// the header. The header, as JSON, and the rows follow.
	keptHead = len(keptMagic) + 8
	// keptTexts is the maximum total size of the text labels in a header.
	keptTexts = 1 << 20
)

// maxKeptHeader returns the maximum size of the header for a number of files. It limits the memory for
// reading a header. The entry of a file, and the extremes of a field, take less than 256 bytes each.
func maxKeptHeader(files int) int64 { return keptTexts + 256*int64(files+maxFields) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errKept = errors.New("the kept index is damaged or belongs to other files")

// keptHeader describes the rows of an index, and the files that they belong to.
type keptHeader struct {
	// Key is a hash of everything that the index depends on except the files.
	Key      string     `json:"key"`
	Files    []keptFile `json:"files"`
	Width    int        `json:"width"`
	Sum      uint32     `json:"sum"` // CRC32C of the rows
	Digest   []byte     `json:"digest"`
	Texts    [][]byte   `json:"texts,omitempty"`
	Observed []observed `json:"observed"`
}

// keptFile identifies the content of a file by its size, its time and its ends.
type keptFile struct {
	Size     int64  `json:"size"`
	Modified int64  `json:"modified"` // in nanoseconds since 1970
	Ends     []byte `json:"ends"`     // hash of the first and the last bytes
	Records  int    `json:"records"`
}

func (k keptFile) same(o keptFile) bool {
	return k.Size == o.Size && k.Modified == o.Modified && bytes.Equal(k.Ends, o.Ends)
}

// identityOf returns the identity of an open file.
func identityOf(f *os.File) (k keptFile, err error) {
	info, err := f.Stat()
	if err != nil {
		return k, err
	}
	const end = 4 << 10
	sum := sha256.New()
	for _, at := range []int64{0, max(0, info.Size()-end)} {
		if _, err := io.Copy(sum, io.NewSectionReader(f, at, end)); err != nil {
			return k, err
		}
	}
	return keptFile{Size: info.Size(), Modified: info.ModTime().UnixNano(), Ends: sum.Sum(nil)[:16]}, nil
}

// keptIndex names the file that keeps an index between runs.
type keptIndex struct {
	path, key string
}

// keptIndexOf returns the keptIndex for the files at paths, in the folder steadyfit/data of the user's
// cache. ok is false for tables, for files of less than keepFrom bytes, and if there is no cache
// folder.
func keptIndexOf(paths []string, format recordFormat, o Options, size int64) (k keptIndex, ok bool) {
	cache, err := os.UserCacheDir()
	if _, isTable := format.(tableFormat); err != nil || isTable || size < keepFrom {
		return k, false
	}
	ignore := slices.Sorted(slices.Values(o.Ignore))
	sum := sha256.New()
	// Each version of the format has its own file, so that two versions of the program do not replace
	// each other's index.
	fmt.Fprintf(sum, "%s%s %q %q\n", keptMagic, format.name(), o.CSV.Label, ignore)
	if len(o.CSV.Features) > 0 { // Features may leave values out
		fmt.Fprintf(sum, "%q %t %q\n", o.CSV.Input, o.CSV.Row, o.CSV.Features)
	}
	for _, path := range paths {
		if path, err = filepath.Abs(path); err != nil {
			return k, false
		}
		fmt.Fprintf(sum, "%q\n", path)
	}
	k.key = hex.EncodeToString(sum.Sum(nil))
	k.path = filepath.Join(cache, "steadyfit", "data", k.key[:32]+".index")
	return k, true
}

// save writes the index of a set, and removes indexes that were not used for a long time.
func (k keptIndex) save(s *recordSet) error {
	h := keptHeader{Key: k.key, Width: s.index.width, Digest: s.index.digest, Observed: s.index.observed}
	for _, file := range s.all {
		file.identity.Records = file.records
		h.Files = append(h.Files, file.identity)
	}
	for _, text := range s.index.texts {
		h.Texts = append(h.Texts, []byte(text))
	}
	err := s.index.blocks(0, s.index.n, func(_ int, raw []byte) error {
		h.Sum = crc32.Update(h.Sum, castagnoli, raw)
		return nil
	})
	if err != nil {
		return err
	}
	header, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if int64(len(header)) > maxKeptHeader(len(s.all)) {
		return fmt.Errorf("an index with a header of %d bytes is %w", len(header), ErrUnsupported)
	}
	head := binary.LittleEndian.AppendUint32([]byte(keptMagic), uint32(len(header)))
	head = binary.LittleEndian.AppendUint32(head, crc32.Checksum(header, castagnoli))
	dir := filepath.Dir(k.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	removeUnused(dir)
	return files.Stream(k.path, func(w io.Writer) error {
		rows := io.NewSectionReader(s.index.rows, 0, int64(s.index.n)*int64(s.index.width))
		_, err := io.Copy(w, io.MultiReader(bytes.NewReader(head), bytes.NewReader(header), rows))
		return err
	})
}

// removeUnused removes the indexes in a folder that were not used for keepUnused, and the temporary files
// that killed processes left.
func removeUnused(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		keep := keepUnused
		if strings.HasPrefix(e.Name(), ".") {
			keep = keepTemporary
		}
		if info, err := e.Info(); err == nil && strings.Contains(e.Name(), ".index") && time.Since(info.ModTime()) > keep {
			_ = os.Remove(filepath.Join(dir, e.Name())) // another process may have removed it
		}
	}
}

// load opens the files at paths and fills s from the kept index. After an error, s is closed. Training
// uses the labels in the index, so load refuses an index that other users may write.
func (k keptIndex) load(s *recordSet, paths []string) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	f, size, err := files.Open(k.path)
	if err != nil {
		return err
	}
	defer f.Close() // the file was only read
	if err := files.CheckOwner(f); err != nil {
		return err
	}
	h, start, err := k.header(f, size, len(paths))
	if err != nil {
		return err
	}
	if err := s.openKept(h, paths); err != nil {
		return err
	}
	last := s.last()
	s.index = &recordIndex{n: last.first + last.records, width: h.Width, digest: h.Digest, observed: h.Observed}
	length := int64(s.index.n) * int64(h.Width)
	if s.index.n == 0 || start+length != size {
		return errKept
	}
	if s.index.rows, err = s.copyOfRows(f, start, length); err != nil {
		return err
	}
	if err := s.startKept(h); err != nil {
		return err
	}
	if err := s.checkRows(h); err != nil {
		return err
	}
	s.kept = k.path
	now := time.Now()
	_ = os.Chtimes(k.path, now, now) // only removeUnused needs the time
	return nil
}

// copyOfRows copies the rows of a kept index, because another process may replace the file during the
// training. On a network file system, the rows could then no longer be read.
func (s *recordSet) copyOfRows(f *os.File, start, length int64) (io.ReaderAt, error) {
	if length < indexInMemory {
		rows := make([]byte, length)
		_, err := f.ReadAt(rows, start)
		return bytes.NewReader(rows), err
	}
	rows, err := s.scratchFile("index")
	if err != nil {
		return nil, err
	}
	if _, err = f.Seek(start, io.SeekStart); err == nil {
		_, err = io.CopyN(rows, f, length)
	}
	return rows, err
}

// header reads the header, and returns where the rows begin.
func (k keptIndex) header(f *os.File, size int64, files int) (h keptHeader, start int64, err error) {
	head := make([]byte, keptHead)
	if _, err := f.ReadAt(head, 0); err != nil {
		return h, 0, err
	}
	numbers, found := bytes.CutPrefix(head, []byte(keptMagic))
	if !found {
		return h, 0, errKept
	}
	length := int64(binary.LittleEndian.Uint32(numbers))
	start = int64(keptHead) + length
	if length > maxKeptHeader(files) || start > size {
		return h, 0, errKept
	}
	text := make([]byte, length)
	if _, err := f.ReadAt(text, int64(keptHead)); err != nil {
		return h, 0, err
	}
	if crc32.Checksum(text, castagnoli) != binary.LittleEndian.Uint32(numbers[4:]) {
		return h, 0, errKept
	}
	if err := json.Unmarshal(text, &h); err != nil {
		return h, 0, err
	}
	if h.Key != k.key || h.Width < entryBytes || h.Width > recordBytes {
		return h, 0, errKept
	}
	return h, start, nil
}

// openKept opens the files, and returns an error if they are not those for which the index was made.
func (s *recordSet) openKept(h keptHeader, paths []string) error {
	if len(h.Files) != len(paths) {
		return errKept
	}
	n := 0
	for i, path := range paths {
		f, _, err := openFile(path)
		if err != nil {
			return err
		}
		file := &recordFile{path: path, set: &s.recordFiles, first: n, records: h.Files[i].Records}
		file.identity, err = identityOf(f)
		if len(paths) <= maxOpenFiles {
			file.from = f
		} else {
			err = errors.Join(err, f.Close())
		}
		s.all = append(s.all, file)
		if err != nil {
			return err
		}
		// A record has at least a byte, so the sum of counts does not overflow.
		if !file.identity.same(h.Files[i]) || file.records < 0 || int64(file.records) > file.identity.Size {
			return errKept
		}
		n += file.records
	}
	return checkSamples(n)
}

// startKept takes the fields from the first record, and returns an error if the index does not match
// them.
func (s *recordSet) startKept(h keptHeader) error {
	var held heldRecord
	if err := s.index.read(held.entry[:], 0, 0); err != nil {
		return err
	}
	file, _ := s.position(0)
	first := entryOf(held.entry[:])
	if !first.inside(file) {
		return errKept
	}
	if err := s.fetch(&held, file, first); err != nil {
		return err
	}
	if err := s.start(held.raw); err != nil {
		return err
	}
	width := entryBytes
	if s.storesLabel() {
		if width += s.label.value.kind.Size; s.storesText() {
			width = entryBytes + textID.Size
		}
	}
	if width != h.Width || len(h.Observed) != len(s.fields) || len(h.Texts) > 0 && !s.storesText() {
		return errKept
	}
	for _, text := range h.Texts {
		if err := s.addText(string(text)); err != nil {
			return err
		}
	}
	s.index.texts = s.texts
	return nil
}

// inside reports whether a record lies in a file.
func (r record) inside(file *recordFile) bool {
	return r.length <= maxRecord && r.offset >= 0 && r.offset <= file.identity.Size-int64(r.length)
}

// checkRows checks the rows of a kept index: their checksum, the places of records and the numbers of texts.
func (s *recordSet) checkRows(h keptHeader) error {
	sum, at := uint32(0), 0
	texts := s.storesText()
	err := s.index.blocks(0, s.index.n, func(row int, raw []byte) error {
		sum = crc32.Update(sum, castagnoli, raw)
		for ; len(raw) > 0; row, raw = row+1, raw[h.Width:] {
			for row >= s.all[at].first+s.all[at].records {
				at++
			}
			if !entryOf(raw).inside(s.all[at]) || texts && binary.LittleEndian.Uint32(raw[entryBytes:]) >= uint32(len(s.texts)) {
				return errKept
			}
		}
		return nil
	})
	if err == nil && sum != h.Sum {
		err = errKept
	}
	return err
}
