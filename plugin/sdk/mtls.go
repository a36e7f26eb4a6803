package sdk

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"io"
	"math/big"
	"os"
	"strings"
	"time"
)

// go-plugin's AutoMTLS makes a P-521 key at each start, which costs as much as the rest of it. We make a P-256 key, hand go-plugin
// the finished configuration, and put the certificate into the handshake line, where it would have put its own.

// mutualTLS returns the configuration for a host that sent its certificate (PEM), and our own certificate (DER).
func mutualTLS(hostPEM string) (*tls.Config, []byte, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(hostPEM)) {
		return nil, nil, errors.New("the host's certificate in PLUGIN_CLIENT_CERT cannot be read")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "localhost", Organization: []string{"Hermes"}},
		DNSNames:              []string{"localhost"},
		NotBefore:             time.Now().Add(-time.Minute),
		NotAfter:              time.Now().Add(30 * 365 * 24 * time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageKeyAgreement | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    pool,
		RootCAs:      pool,
		ServerName:   "localhost",
		MinVersion:   tls.VersionTLS12,
	}, der, nil
}

// announce replaces os.Stdout until restore is called, and passes go-plugin's handshake line on with our certificate in it.
func announce(der []byte) (restore func(), err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out := os.Stdout
	os.Stdout = w
	passed := make(chan struct{})
	go func() { // ends with the first line, or when restore closes the pipe
		defer close(passed)
		defer func() { _ = r.Close() }()
		line, _ := readLine(r)
		_, _ = io.WriteString(out, withCertificate(line, der))
	}()
	return func() {
		_ = w.Close()
		<-passed
	}, nil
}

// readLine reads up to a newline, byte by byte: what follows is not ours.
func readLine(r io.Reader) (string, error) {
	var line bytes.Buffer
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(r, b); err != nil {
			return line.String(), err
		}
		line.WriteByte(b[0])
		if b[0] == '\n' {
			return line.String(), nil
		}
	}
}

// withCertificate puts der into the sixth field of a handshake line, core version|version|network|address|protocol|certificate.
func withCertificate(line string, der []byte) string {
	body, hasNewline := strings.CutSuffix(line, "\n")
	fields := strings.Split(body, "|")
	if !hasNewline || len(fields) < 6 || fields[5] != "" {
		return line
	}
	fields[5] = base64.RawStdEncoding.EncodeToString(der)
	return strings.Join(fields, "|") + "\n"
}
