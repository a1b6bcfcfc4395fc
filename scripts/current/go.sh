# go 1.24: a program built with its cache, tests, and the program itself (statically linked: uncopy leaves it alone).
# shellcheck shell=bash
packages="golang-go"
drive() {
    export GOCACHE=/tmp/go GOPATH=/tmp/gopath GOFLAGS=-mod=mod GOTOOLCHAIN=local CGO_ENABLED=0
    mkdir one && cd one && client go mod init one 2>/dev/null || return
    cat >main.go <<'GO'
package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
)

func main() {
	data := make([]byte, 3000000)
	for at := range data {
		data[at] = byte(at * at >> 5)
	}
	listener, _ := net.Listen("tcp", "127.0.0.1:0")
	for round := 0; round < 10; round++ {
		go func() {
			connection, _ := net.Dial("tcp", listener.Addr().String())
			connection.Write(data)
			connection.Close()
		}()
		connection, _ := listener.Accept()
		got, _ := io.ReadAll(connection)
		fmt.Printf("%x\n", sha256.Sum256(got))
	}
	os.WriteFile("copy", data, 0644)
	out, err := exec.Command("cat", "copy").Output()
	fmt.Printf("%x %v\n", sha256.Sum256(out), err)
}
GO
    client go build -p 2 -o one . && client ./one && client go vet .
}
