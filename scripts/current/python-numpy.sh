# numpy, pandas and HDF5: arrays that are received, mapped, saved, loaded and computed with.
# shellcheck shell=bash
packages="python3-numpy python3-pandas python3-h5py"
drive() {
    client python3 "$kit/arrays.py"
}
