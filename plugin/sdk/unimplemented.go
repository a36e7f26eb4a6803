package sdk

import (
	"context"
	"io"
)

// UnimplementedEnvironment is for embedding in an Environment that cannot do everything: each method fails with CodeUnsupported,
// and Close has nothing to do. Methods that later minor versions add are then there too.
type UnimplementedEnvironment struct{}

var (
	_ Environment = UnimplementedEnvironment{}
	_ Dialer      = UnimplementedEnvironment{}
	_ Files       = UnimplementedEnvironment{}
)

func unsupported(c Capability) error {
	return Errorf(CodeUnsupported, NotStarted, "backend has no capability %q", c)
}

// Exec implements Environment.
func (UnimplementedEnvironment) Exec(context.Context, Command, IO) (ExitStatus, error) {
	return ExitStatus{}, Errorf(CodeUnsupported, NotStarted, "backend runs no commands")
}

// Close implements Environment.
func (UnimplementedEnvironment) Close(context.Context) error { return nil }

// Dial implements Dialer.
func (UnimplementedEnvironment) Dial(context.Context, DialRequest) (Endpoint, error) {
	return Endpoint{}, unsupported(CapSocket)
}

// Put implements Files.
func (UnimplementedEnvironment) Put(context.Context, PutRequest) error { return unsupported(CapFiles) }

// Get implements Files.
func (UnimplementedEnvironment) Get(context.Context, string, io.Writer) (FileInfo, error) {
	return FileInfo{}, unsupported(CapFiles)
}
