package launch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
)

// checkNative says from a file's first bytes whether this machine can run it.
func checkNative(head []byte) (Kind, error) {
	goos, arch, err := platform(head)
	switch {
	case err != nil:
		return KindInvalid, err
	case goos != runtime.GOOS || (arch != runtime.GOARCH && arch != universal):
		return KindIncompatible, fmt.Errorf("is built for %s/%s, this machine is %s/%s", goos, arch, runtime.GOOS, runtime.GOARCH)
	}
	return "", nil
}

// universal stands for a Mach-O file for several architectures.
const universal = "universal"

// platform reads for which system and architecture a binary is built, in Go's words.
func platform(head []byte) (goos, arch string, err error) {
	switch {
	case len(head) == 0:
		return "", "", errors.New("is empty")
	case bytes.HasPrefix(head, []byte("#!")):
		return "", "", errors.New("is a script, not a native binary")
	case bytes.HasPrefix(head, []byte("\x7fELF")):
		return elfPlatform(head)
	case bytes.HasPrefix(head, []byte("\xcf\xfa\xed\xfe")) && len(head) >= 8:
		return "darwin", lookup(machoArch, binary.LittleEndian.Uint32(head[4:])), nil
	case bytes.HasPrefix(head, []byte("\xca\xfe\xba\xbe")) && len(head) >= 8 && binary.BigEndian.Uint32(head[4:]) < 20:
		return "darwin", universal, nil // 20 and more is a Java class
	case bytes.HasPrefix(head, []byte("MZ")):
		return "windows", "pe", nil
	}
	return "", "", errors.New("is not a native binary")
}

func elfPlatform(head []byte) (goos, arch string, err error) {
	if len(head) < 20 {
		return "", "", errors.New("is a truncated ELF file")
	}
	var order binary.ByteOrder = binary.LittleEndian
	if head[5] == 2 {
		order = binary.BigEndian
	}
	const executable, shared = 2, 3 // position-independent programs are shared objects
	if t := order.Uint16(head[16:]); t != executable && t != shared {
		return "", "", errors.New("is an ELF file, but not a program")
	}
	goos = lookup(elfSystem, head[7])
	arch = lookup(elfArch, elfMachine{order.Uint16(head[18:]), head[4] == 2, head[5] == 2})
	return goos, arch, nil
}

// elfMachine is what tells ELF architectures apart: machine, 64 bits, big-endian.
type elfMachine struct {
	machine uint16
	wide    bool
	big     bool
}

var elfArch = map[elfMachine]string{
	{3, false, false}:   "386",
	{62, true, false}:   "amd64",
	{40, false, false}:  "arm",
	{183, true, false}:  "arm64",
	{258, true, false}:  "loong64",
	{8, false, true}:    "mips",
	{8, false, false}:   "mipsle",
	{8, true, true}:     "mips64",
	{8, true, false}:    "mips64le",
	{21, true, true}:    "ppc64",
	{21, true, false}:   "ppc64le",
	{243, true, false}:  "riscv64",
	{22, true, true}:    "s390x",
	{62, false, false}:  "x32",
	{243, false, false}: "riscv32",
}

// elfSystem is the byte EI_OSABI. Linux and most others leave it 0.
var elfSystem = map[byte]string{0: "linux", 3: "linux", 2: "netbsd", 6: "solaris", 9: "freebsd", 12: "openbsd"}

var machoArch = map[uint32]string{0x01000007: "amd64", 0x0100000c: "arm64"}

func lookup[K comparable](m map[K]string, k K) string {
	if s, ok := m[k]; ok {
		return s
	}
	return fmt.Sprintf("unknown(%v)", k)
}
