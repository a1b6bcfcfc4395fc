"""Arrays by every way in and out; prints digests."""

import hashlib
import io
import socket
import threading

import h5py
import numpy
import pandas


def digest(array):
    return hashlib.sha256(numpy.ascontiguousarray(array)).hexdigest()


source = numpy.random.default_rng(1)
left, right = socket.socketpair()
for step in range(20):
    array = source.integers(0, 1 << 60, 100_000 + 10_000 * step)
    thread = threading.Thread(target=left.sendall, args=(array,))
    thread.start()
    got = numpy.empty_like(array)
    view, at = memoryview(got).cast("B"), 0
    while at < len(view):
        at += right.recv_into(view[at:])
    thread.join()
    copy = got.copy()
    got += 1
    print(step, digest(copy) == digest(array), digest(got), digest(numpy.sort(copy)), digest(copy.reshape(100, -1).T))
array = source.normal(size=(1000, 800))
numpy.save("a.npy", array)
numpy.savez_compressed("a.npz", array=array, other=array.T)
print(digest(numpy.load("a.npy")), digest(numpy.load("a.npz")["other"]), digest(numpy.load("a.npy", mmap_mode="r")))
array.tofile("raw")
print(digest(numpy.fromfile("raw")))
mapped = numpy.memmap("map", dtype="f8", mode="w+", shape=array.shape)
mapped[:] = array
mapped.flush()
print(digest(numpy.fromfile("map")))
with h5py.File("a.h5", "w") as file:
    file.create_dataset("a", data=array, chunks=(100, 100), compression="gzip")
    file.create_dataset("b", data=array)
with h5py.File("a.h5") as file:
    print(digest(file["a"][:]), digest(file["b"][::2]))
frame = pandas.DataFrame(array[:200])
frame.to_csv("a.csv")
frame.to_pickle("a.pickle")
print(digest(pandas.read_csv("a.csv", index_col=0).to_numpy()), digest(pandas.read_pickle("a.pickle").to_numpy()))
buffer = io.BytesIO()
numpy.save(buffer, array)
print(hashlib.sha256(buffer.getvalue()).hexdigest())
for _ in range(100):
    array = array * 1.0000001 + 0.5
print(digest(array))
