//! Memory cap and options. Needs a process of its own: options must be set before the first allocation.

#![allow(clippy::cast_possible_truncation, reason = "numbers of tests are small")]

mod common;

use common::exclusive;
use uncopy_twin::{
    Buffer, ConfigureError, Options, Until, allocate, configure, deallocate, lend, reallocate, statistics,
};

const CAP: usize = 8 << 20;

fn set() {
    let mut options = Options::new();
    options.memory_cap = CAP;
    let refused = |pageblock_pages, large_threshold| {
        let mut illegal = options;
        (illegal.pageblock_pages, illegal.large_threshold) = (pageblock_pages, large_threshold);
        configure(illegal).expect_err("refused")
    };
    match configure(options) {
        Ok(()) => {
            assert_eq!(refused(0, 4096), ConfigureError::PageblockPages(0));
            assert_eq!(refused(65, 4096), ConfigureError::PageblockPages(65));
            assert_eq!(refused(16, 8), ConfigureError::LargeThreshold(8));
            assert_eq!(refused(1, 4096), ConfigureError::LargeThreshold(4096));
        }
        Err(error) => assert_eq!(error, ConfigureError::InUse),
    }
}

#[test]
fn at_the_cap_there_is_null_and_enomem_and_memory_again_after_a_free() {
    let _guard = exclusive();
    set();
    for size in [100usize, 3000, 10_000, 100_000, 1 << 20] {
        let mut objects = Vec::new();
        loop {
            let object = allocate(size);
            if object.is_null() {
                assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
                break;
            }
            // SAFETY: `object` was just allocated with at least `size` bytes, and nothing else uses it.
            unsafe { object.write_bytes(1, size) };
            if objects.len() % 2 == 0 {
                drop(lend(object as usize, size, Until::Dropped));
            }
            objects.push(object);
            assert!(objects.len() * size <= CAP, "more than the cap");
        }
        let held = objects.len() * size;
        assert!(held * 10 > CAP * 7, "{held} bytes in objects of {size}");
        let before = statistics();
        assert!(before.used_bytes + before.free_resident_bytes <= CAP as u64);
        // SAFETY: the test owns the objects. The first stays valid because the call fails; each of the others
        // is freed once and not used afterwards.
        unsafe {
            assert!(reallocate(objects[0], CAP).is_null());
            assert_eq!(*objects[0], 1);
            for object in &objects[..objects.len() / 2] {
                deallocate(*object);
            }
        }
        assert_eq!(configure(Options::default()), Err(ConfigureError::InUse));
        let again: Vec<Buffer> =
            (0..objects.len() / 3).map(|_| Buffer::zeroed(size).expect("memory again")).collect();
        assert!(again.iter().all(|bytes| bytes.iter().all(|byte| *byte == 0)));
        drop(again);
        // SAFETY: the test owns these objects, which are freed once and not used afterwards.
        objects[objects.len() / 2..].iter().for_each(|object| unsafe { deallocate(*object) });
    }
    assert!(uncopy_twin::is_valid());
    assert!(statistics().used_bytes <= 6 * 64 * 1024, "one pageblock of each class is kept");
}
