package measure

import (
	"context"
	"os/exec"
	"strings"
)

// Commit returns the commit of the working folder, with "+" if files differ from it. It is
// empty outside of a repository.
func Commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "HEAD").Output()
	if err != nil {
		return ""
	}
	commit := strings.TrimSpace(string(out))
	if out, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--untracked-files=no").Output(); err == nil &&
		len(out) > 0 {
		commit += "+"
	}
	return commit
}
