package lint

import (
	"bytes"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// lanes are the parts of the tests that scripts/lane.sh knows, by the word that a test uses.
var lanes = map[string][]string{"skip": {"race", "gcstress", "check", "onednn"}, "run": {"onednn", "check", "soak"}}

// laneOf matches the line in which a test names its lanes, with the reason.
var laneOf = regexp.MustCompile(`(?m)^//lane:(\w*) *([a-z ]*?) ?(?:\(.+\))?$`)

// Each line with lanes stands above a test and names lanes that exist.
func TestLanesExist(t *testing.T) {
	walk(t, filepath.Join("..", ".."), func(name string, content []byte) {
		if !strings.HasSuffix(name, "_test.go") {
			return
		}
		for _, line := range laneOf.FindAllSubmatchIndex(content, -1) {
			text := string(content[line[0]:line[1]])
			known := lanes[string(content[line[2]:line[3]])]
			named := strings.Fields(string(content[line[4]:line[5]]))
			unknown := slices.ContainsFunc(named, func(lane string) bool { return !slices.Contains(known, lane) })
			if len(named) == 0 || unknown {
				t.Errorf("%s: %s: the lanes are %v", name, text, known)
			}
			after := content[line[1]+1:]
			if !bytes.HasPrefix(after, []byte("//lane:")) && !bytes.HasPrefix(after, []byte("func Test")) {
				t.Errorf("%s: %s: no test follows", name, text)
			}
		}
	})
}
