//! The memory cap, and options: a process of its own, because options are taken before the first allocation.

#![allow(clippy::cast_possible_truncation, reason = "numbers of tests are small")]

mod common;

use common::alone;
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
    let _alone = alone();
    set();
    for size in [100usize, 3000, 10_000, 100_000, 1 << 20] {
        let mut objects = Vec::new();
        loop {
            let object = allocate(size);
            if object.is_null() {
                assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
                break;
            }
            // SAFETY: an object of so many bytes.
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
        // SAFETY: the object is the test's; too large a size leaves it as it is.
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
        // SAFETY: as above.
        objects[objects.len() / 2..].iter().for_each(|object| unsafe { deallocate(*object) });
    }
    assert!(uncopy_twin::is_valid());
    assert!(statistics().used_bytes <= 6 * 64 * 1024, "one pageblock of each class is kept");
}
