package sdk

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/hermes-framework/hermes/plugin/proto/hermes/backend/v1"
)

// The go-plugin handshake: a host passes these to its client, Serve checks them.
const (
	// ProtocolVersion is the go-plugin protocol version: the major version of hermes.backend.v1.
	ProtocolVersion = 1
	// CookieKey and CookieValue are the environment variable by which a plugin knows that a host started it. It is no secret.
	CookieKey   = "HERMES_BACKEND_COOKIE"
	CookieValue = "5d8e6a1f0c3b4f7e9a2d"
	// PluginName is the name under which the backend is dispensed.
	PluginName = "backend"
)

const (
	// MaxChunk is the most data that one message carries. At 32 KiB and a header, gRPC's buffer pool hands out (and clears) 1 MiB.
	MaxChunk = 32<<10 - 64
	// MaxMessage is the largest message that either side accepts.
	MaxMessage = 16 << 20
)

const (
	// initialStdin is how much stdin a client may send before it was granted any, so that short input arrives with the start.
	initialStdin = 64 << 10
	// window is how far a sender may be ahead of the reader, in each direction of each stream of a process.
	window = 256 << 10
	// transportWindow is gRPC's own window for each call. It is larger than all that the credit above allows to be under way,
	// so that gRPC never stops a message that the reader is ready for.
	transportWindow = 2 << 20
)

// serverOptions are the options of every server of this package.
func serverOptions(opts []grpc.ServerOption) []grpc.ServerOption {
	return append(opts,
		grpc.MaxRecvMsgSize(MaxMessage),
		grpc.MaxSendMsgSize(MaxMessage),
		grpc.InitialWindowSize(transportWindow),
		grpc.InitialConnWindowSize(4*transportWindow),
	)
}

// DialOptions are the gRPC options that a host's connection to a plugin should have.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithInitialWindowSize(transportWindow),
		grpc.WithInitialConnWindowSize(4 * transportWindow),
	}
}

var callOptions = []grpc.CallOption{
	grpc.MaxCallRecvMsgSize(MaxMessage),
	grpc.MaxCallSendMsgSize(MaxMessage),
}

var deliveryToWire = map[Delivery]pb.Delivery{
	NotStarted: pb.Delivery_DELIVERY_NOT_STARTED,
	MayHaveRun: pb.Delivery_DELIVERY_MAY_HAVE_RUN,
	Ran:        pb.Delivery_DELIVERY_RAN,
}

// deliveryFromWire reads a delivery; one that is not known may have been anything.
func deliveryFromWire(d pb.Delivery) Delivery {
	switch d {
	case pb.Delivery_DELIVERY_NOT_STARTED:
		return NotStarted
	case pb.Delivery_DELIVERY_RAN:
		return Ran
	default:
		return MayHaveRun
	}
}

// grpcCodes are for tools that look at the status and know nothing of ErrorDetail.
var grpcCodes = map[Code]codes.Code{
	CodeInvalid:      codes.InvalidArgument,
	CodeNotFound:     codes.NotFound,
	CodePermission:   codes.PermissionDenied,
	CodeUnavailable:  codes.Unavailable,
	CodeUnsupported:  codes.Unimplemented,
	CodeTimeout:      codes.DeadlineExceeded,
	CodeCanceled:     codes.Canceled,
	CodeExhausted:    codes.ResourceExhausted,
	CodeConflict:     codes.AlreadyExists,
	CodeClosed:       codes.FailedPrecondition,
	CodeUntrusted:    codes.PermissionDenied,
	CodeIncompatible: codes.FailedPrecondition,
	CodeCrashed:      codes.Aborted,
	CodeInternal:     codes.Internal,
}

// toStatus turns what a backend returned into the status that travels.
func toStatus(err error, delivery Delivery) error {
	e := AsError(err, delivery)
	if e == nil {
		return nil
	}
	message := clip(e.Error(), maxDetail)
	detail := &pb.ErrorDetail{
		Code:     clip(string(e.Code), 64),
		Delivery: deliveryToWire[e.Delivery],
		Message:  message,
		Hint:     clip(e.Hint, maxDetail-len(message)),
	}
	code, ok := grpcCodes[e.Code]
	if !ok {
		code = codes.Unknown
	}
	// The text itself travels once, in the detail: gRPC sends a status message as a header, escaped.
	st, err := status.New(code, string(e.Code)).WithDetails(detail)
	if err != nil {
		return status.Error(code, message)
	}
	return st.Err()
}

// fromStatus turns the end of a call into an error. A failure that the far side did not describe is one of the connection;
// delivery says what is known about the work then.
func fromStatus(err error, delivery Delivery) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return AsError(err, delivery)
	}
	for _, d := range st.Details() {
		if d, ok := d.(*pb.ErrorDetail); ok {
			return fromDetail(d)
		}
	}
	return fromTransport(st, delivery)
}

func fromDetail(d *pb.ErrorDetail) *Error {
	e := &Error{
		Code:     Code(clip(d.GetCode(), 64)),
		Delivery: deliveryFromWire(d.GetDelivery()),
		Message:  clip(d.GetMessage(), maxDetail),
		Hint:     clip(d.GetHint(), maxDetail),
	}
	if e.Code == "" {
		e.Code = CodeInternal
	}
	return e
}

// fromTransport describes a status that gRPC itself made.
func fromTransport(st *status.Status, delivery Delivery) *Error {
	message := clip(st.Message(), maxDetail)
	switch st.Code() {
	case codes.Unavailable:
		if delivery == NotStarted {
			return &Error{Code: CodeUnavailable, Message: "backend plugin cannot be reached: " + message}
		}
		return &Error{Code: CodeCrashed, Delivery: delivery, Message: "connection to the backend plugin was lost: " + message}
	case codes.Unimplemented:
		return &Error{Code: CodeIncompatible, Message: "backend plugin does not know this call: " + message}
	case codes.Canceled:
		return &Error{Code: CodeCanceled, Delivery: delivery, Message: "call to the backend plugin was cancelled"}
	case codes.DeadlineExceeded:
		return &Error{Code: CodeTimeout, Delivery: delivery, Message: "call to the backend plugin took too long"}
	case codes.ResourceExhausted:
		return &Error{Code: CodeInvalid, Delivery: delivery, Message: "message to or from the backend plugin is too large: " + message}
	default:
		return &Error{Code: CodeInternal, Delivery: delivery, Message: fmt.Sprintf("backend plugin: %s: %s", st.Code(), message)}
	}
}

// canceled describes work that ended because its ctx did.
func canceled(ctx context.Context, delivery Delivery, what string) *Error {
	cause := context.Cause(ctx)
	if cause == nil {
		cause = context.Canceled
	}
	code := CodeCanceled
	if errors.Is(cause, context.DeadlineExceeded) || errors.Is(cause, ErrTimeout) {
		code = CodeTimeout
	}
	return &Error{Code: code, Delivery: delivery, Message: fmt.Sprintf("%s: %v", what, cause), Cause: cause}
}
