package launch

import (
	"slices"
	"strings"
)

// allowedNames are the variables of the host that a plugin gets. Not among them: PLUGIN_*, the host's secrets, whatever
// changes how a program is loaded (LD_*).
var allowedNames = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR",
	"XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME",
	"SSH_AUTH_SOCK", "KRB5CCNAME",
	"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY", "DOCKER_API_VERSION",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
	"SSL_CERT_FILE", "SSL_CERT_DIR",
	"GOCOVERDIR", "GODEBUG", "GOMAXPROCS", "GOMEMLIMIT", "GOGC", "GOTRACEBACK", "GORACE",
}

// allowed picks from a host's environment what a plugin gets.
func allowed(environ []string) []string {
	var out []string
	for _, kv := range environ {
		name, _, ok := strings.Cut(kv, "=")
		if ok && (strings.HasPrefix(name, "LC_") || slices.Contains(allowedNames, name)) {
			out = append(out, kv)
		}
	}
	return out
}

// mergeEnv joins environments. The last entry of a name wins, so no name is there twice.
func mergeEnv(lists ...[]string) []string {
	var out []string
	at := make(map[string]int)
	for _, kv := range slices.Concat(lists...) {
		name, _, ok := strings.Cut(kv, "=")
		if !ok || name == "" || strings.ContainsRune(kv, 0) {
			continue
		}
		if i, ok := at[name]; ok {
			out[i] = kv
			continue
		}
		at[name] = len(out)
		out = append(out, kv)
	}
	return out
}
