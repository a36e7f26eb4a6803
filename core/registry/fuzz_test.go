package registry

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hermes-framework/hermes/core/secfile"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// FuzzReadTrust: whatever the lock holds, it is refused as a whole or trusts exactly what it names; and what is read and written is the same.
func FuzzReadTrust(f *testing.F) {
	sum := strings.Repeat("0a", 32)
	for _, s := range []string{
		"", "null", "{}", "[]", `{"plugins":null}`, `{"plugins":[{}]}`, `{"plugins":[null]}`, "{", "\x00\xff", `{"plugins":{}}`,
		`{"plugins":[{"name":"x","path":"/p","sha256":"` + sum + `","size":7,"trusted":"2026-01-02T03:04:05Z"}]}`,
		`{"plugins":[{"name":"x","sha256":"` + sum + `"},{"name":"y+z","path":"relative","sha256":"` + sum + `","size":-1}]}`,
		`{"plugins":[{"name":"x","sha256":"0a"}]}`,
		`{"plugins":[{"name":"../x","sha256":"` + sum + `"}]}`,
		`{"plugins":[{"name":"x","sha256":"` + strings.ToUpper(sum) + `"}]}`,
		`{"PLUGINS":[{"name":"x","sha256":"` + sum + `"}],"more":1}`,
	} {
		f.Add([]byte(s))
	}
	lock := filepath.Join(f.TempDir(), "plugins.lock")
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(lock, content, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readTrust(lock)
		if err != nil {
			if e := sdk.AsError(err, sdk.Ran); !errors.Is(err, sdk.ErrInvalid) || e.Delivery != sdk.NotStarted || e.Hint == "" || !strings.Contains(e.Message, lock) {
				t.Errorf("%q: %v, hint %q", content, err, e.Hint)
			}
			return
		}
		for _, e := range got.Plugins {
			if !backendName.MatchString(e.Name) || len(e.SHA256) != 64 {
				t.Errorf("%q is taken for an entry: %+v", content, e)
			}
			path := e.Path
			if path == "" {
				path = "/anywhere"
			}
			if err := got.check(e.Name, path, e.SHA256); err != nil {
				t.Errorf("%q: its entry %+v: %v", content, e, err)
			}
			other := strings.Repeat("f", 63) + "e"
			if err := got.check(e.Name, path, other); other != e.SHA256 && !errors.Is(err, sdk.ErrUntrusted) {
				t.Errorf("%q: another binary in place of %+v: %v", content, e, err)
			}
		}
		if err := got.check("not-in-there", "/p", sum); !errors.Is(err, sdk.ErrUntrusted) && !strings.Contains(string(content), "not-in-there") {
			t.Errorf("%q trusts what it does not name: %v", content, err)
		}

		data, err := json.MarshalIndent(got, "", "  ")
		if err == nil {
			err = secfile.Write(lock, data)
		}
		if err != nil {
			t.Fatalf("%q cannot be written again: %v", content, err)
		}
		again, err := readTrust(lock)
		if diff := cmp.Diff(got, again, cmp.AllowUnexported(trust{})); err != nil || diff != "" {
			t.Errorf("%q, written and read again: %v, (-want +got):\n%s", content, err, diff)
		}
	})
}

// FuzzReadManifest: a manifest that can be read claims its schemes, and one that cannot claims none and is named.
func FuzzReadManifest(f *testing.F) {
	for _, s := range []string{
		"", "null", "{}", "[]", "{", `"x"`, "\xff", `{"version":1}`, `{"schemes":"x"}`, `{"schemes":[null]}`,
		`{"version":"1.2.3","description":"a\nb","schemes":["x","x+y"],"more":{}}`,
	} {
		f.Add([]byte(s))
	}
	dir := f.TempDir()
	path := filepath.Join(dir, backendPrefix+"x.json")
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readManifest(path)
		if err != nil {
			if owner := schemeOwner(dir, "x"); owner != "" || !strings.Contains(err.Error(), path) {
				t.Errorf("%q: %v, and the scheme x belongs to %q", content, err, owner)
			}
			return
		}
		if !json.Valid(content) {
			t.Errorf("%q is read as %+v", content, got)
		}
		for _, scheme := range got.Schemes {
			if owner := schemeOwner(dir, scheme); owner != "x" {
				t.Errorf("%q: the scheme %q belongs to %q", content, scheme, owner)
			}
		}
	})
}
