// The program of shares.c in Go: the same shares of processor time by `copy`, which is runtime.memmove, by reads from a
// memory file, and by arithmetic. The mode is always "main": one goroutine, locked to its thread.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"unsafe"
)

const (
	moveBytes = 64 << 10
	readBytes = 1 << 20
	areaBytes = 8 << 20

	sysMemfdCreate  = 319
	collapse        = 25
	processClock    = 2
	threadClock     = 3
	sliceNs         = 50 * 1000 * 1000
	memmoveActivity = 0
	kernelActivity  = 1
	computeActivity = 2
)

var (
	percent  = [3]int64{30, 20, 50}
	spentNs  [3]int64
	area     []byte
	file     int
	end      int
	readAt   int64
	sink     uint64
	stopping atomic.Bool
)

func expect(err error, call string) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "shares: %s: %v\n", call, err)
		os.Exit(1)
	}
}

func nowNs(clock uintptr) int64 {
	var now syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&now)), 0)
	if errno != 0 {
		expect(errno, "clock_gettime")
	}
	return now.Nano()
}

func nextPiece(count int) []byte {
	end += count
	if end > areaBytes {
		end = count
	}
	return area[end-count : end]
}

var randomState uint64 = 88172645463325252

// randomCount returns a random number from 1 to 2*mean - 1. Batches of one length would repeat in step with a
// profiler's samples.
func randomCount(mean uint64) uint64 {
	randomState ^= randomState << 13
	randomState ^= randomState >> 7
	randomState ^= randomState << 17
	return 1 + randomState%(2*mean-1)
}

//go:noinline
func moveBatch() {
	for count := randomCount(32); count > 0; count-- {
		from := nextPiece(moveBytes)
		copy(nextPiece(moveBytes), from)
	}
}

//go:noinline
func kernelBatch() {
	for count := randomCount(2); count > 0; count-- {
		readAt = (readAt + readBytes) % areaBytes
		got, err := syscall.Pread(file, nextPiece(readBytes), readAt)
		expect(err, "pread")
		if got != readBytes {
			expect(syscall.EIO, "pread")
		}
	}
}

//go:noinline
func computeBatch() {
	word := sink | 1
	for count := randomCount(100000); count > 0; count-- {
		word ^= word << 13
		word ^= word >> 7
		word ^= word << 17
	}
	sink = word
}

func nextActivity() int {
	total := spentNs[0] + spentNs[1] + spentNs[2]
	furthest, most := computeActivity, int64(-1<<63)
	for activity := range spentNs {
		behind := total*percent[activity] - spentNs[activity]*100
		if behind > most {
			furthest, most = activity, behind
		}
	}
	return furthest
}

func work(limitNs int64) {
	start := nowNs(threadClock)
	before := start
	for !stopping.Load() && before-start < limitNs {
		activity := nextActivity()
		switch activity {
		case memmoveActivity:
			moveBatch()
		case kernelActivity:
			kernelBatch()
		default:
			computeBatch()
		}
		after := nowNs(threadClock)
		spentNs[activity] += after - before
		before = after
	}
}

func mapShared(fd, flags int) ([]byte, bool) {
	// Aligned to 2 MiB, as MADV_COLLAPSE needs for the whole of it.
	const huge = 2 << 20
	protection := syscall.PROT_READ | syscall.PROT_WRITE
	reserved, err := syscall.Mmap(-1, 0, areaBytes+huge, syscall.PROT_NONE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	expect(err, "mmap")
	skip := huge - int(uintptr(unsafe.Pointer(&reserved[0]))%huge)
	aligned := reserved[skip : skip+areaBytes]
	_, _, errno := syscall.Syscall6(syscall.SYS_MMAP, uintptr(unsafe.Pointer(&aligned[0])), areaBytes,
		uintptr(protection), uintptr(flags|syscall.MAP_SHARED|syscall.MAP_FIXED), uintptr(fd), 0)
	if errno != 0 {
		expect(errno, "mmap")
	}
	for at := range aligned {
		aligned[at] = 1
	}
	return aligned, syscall.Madvise(aligned, collapse) == nil
}

func main() {
	if len(os.Args) != 3 || os.Args[1] != "main" {
		fmt.Fprintln(os.Stderr, "usage: shares main CPU_SECONDS")
		os.Exit(2)
	}
	seconds, err := strconv.ParseInt(os.Args[2], 10, 64)
	expect(err, os.Args[2])
	runtime.LockOSThread()
	area, _ = mapShared(-1, syscall.MAP_ANON)
	name := []byte("shares\x00")
	fd, _, errno := syscall.Syscall(sysMemfdCreate, uintptr(unsafe.Pointer(&name[0])), 0, 0)
	if errno != 0 {
		expect(errno, "memfd_create")
	}
	file = int(fd)
	expect(syscall.Ftruncate(file, areaBytes), "ftruncate")
	_, isHuge := mapShared(file, 0)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	go func() {
		<-signals
		stopping.Store(true)
	}()
	work(sliceNs)
	spentNs = [3]int64{}
	fmt.Println("ready")
	start := nowNs(processClock)
	for !stopping.Load() && nowNs(processClock) < start+seconds*1000000000 {
		work(sliceNs)
	}
	total := nowNs(processClock) - start
	known := spentNs[0] + spentNs[1] + spentNs[2]
	fmt.Printf("{\"memmove_ns\": %d, \"kernel_ns\": %d, \"compute_ns\": %d, \"other_ns\": %d, \"total_ns\": %d, \"is_huge\": %t}\n",
		spentNs[0], spentNs[1], spentNs[2], total-known, total, isHuge)
}
