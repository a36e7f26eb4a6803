package sdk

import (
	"errors"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	pb "github.com/hermes-framework/hermes/plugin/proto/hermes/backend/v1"
)

const detailURL = "type.googleapis.com/hermes.backend.v1.ErrorDetail"

// FuzzErrorDetail: whatever a plugin puts into a status, the host gets an error that is bounded, readable and the same when it travels on.
func FuzzErrorDetail(f *testing.F) {
	for _, d := range []*pb.ErrorDetail{
		{},
		{Code: "not_found", Delivery: pb.Delivery_DELIVERY_NOT_STARTED, Message: "open é", Hint: "try"},
		{Code: "of tomorrow", Delivery: 99, Message: "x"},
		{Code: "internal", Delivery: pb.Delivery_DELIVERY_RAN, Message: string(make([]byte, 5000)), Hint: string(make([]byte, 5000))},
	} {
		raw, err := proto.Marshal(d)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint32(codes.Internal), "internal", detailURL, raw)
		f.Add(uint32(codes.Unavailable), "", detailURL, raw[:len(raw)/2])
	}
	f.Add(uint32(codes.NotFound), "x\xff", "type.googleapis.com/of.Nothing", []byte{8, 1})
	f.Add(uint32(77), "", "", []byte("\xff"))
	f.Add(uint32(codes.OK), "", detailURL, []byte{})

	f.Fuzz(func(t *testing.T, code uint32, message, url string, raw []byte) {
		p := status.New(codes.Code(code), message).Proto()
		p.Details = append(p.Details, &anypb.Any{TypeUrl: url, Value: raw})
		sent := status.FromProto(p).Err()
		got := fromStatus(sent, MayHaveRun)
		if (sent == nil) != (got == nil) {
			t.Fatalf("%v became %v", sent, got)
		}
		if got == nil {
			return
		}
		checkDetail(t, got)

		again := fromStatus(toStatus(got, NotStarted), NotStarted)
		checkDetail(t, again)
		a, b := AsError(got, NotStarted), AsError(again, NotStarted)
		if a.Code != b.Code || a.Delivery != b.Delivery || clip(got.Error(), maxDetail) != b.Message {
			t.Errorf("%+v became %+v on its second way", a, b)
		}
	})
}

func checkDetail(t *testing.T, err error) {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("got %T %v, want an Error", err, err)
	}
	text := string(e.Code) + e.Message + e.Hint
	if e.Code == "" || len(e.Code) > 64 || len(e.Message) > maxDetail+100 || len(e.Hint) > maxDetail || !utf8.ValidString(text) {
		t.Errorf("code %q, %d bytes of message, %d of hint: %q", e.Code, len(e.Message), len(e.Hint), text)
	}
	if e.Delivery != NotStarted && e.Delivery != MayHaveRun && e.Delivery != Ran {
		t.Errorf("delivery %d", e.Delivery)
	}
	if !errors.Is(err, &Error{Code: e.Code}) {
		t.Errorf("%v is not found by its code %s", err, e.Code)
	}
}
