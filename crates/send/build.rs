//! Names the library for the dynamic linker: programs that were linked with it ask for this name.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libuncopy_send.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
