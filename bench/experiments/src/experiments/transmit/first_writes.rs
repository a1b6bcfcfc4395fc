//! Cost of the first write to a page: a page that may be in flight, one that is only protected, and one that
//! the kernel supplies for the first time (ZCopy §4.3, Table 2).

use std::time::Instant;

use uncopy_twin::{Buffer, Until, lend, settle};

use crate::kit::{Comparison, Failure, Latencies, Progress, Result, Rounds, Sample, Side, While};

const PAGE_BYTES: usize = 4096;
/// A page of an object that was sent and may be in flight: the write replaces it by a copy.
const IN_FLIGHT: Side = Side::Way("in flight");
/// A page of an object whose transmission has completed: the write only removes the protection.
const PROTECTED: Side = Side::Way("protected");
/// Pages of an object. Only the first write to any of them is timed, as the handler may serve its neighbours, too.
const PAGES: usize = 16;
/// Number of objects in one measurement.
const OBJECTS: usize = 500;

/// Writes to the middle page, which must contain zeroes.
fn write_once(memory: &mut [u8], times: &mut Latencies) -> Result<()> {
    let page = &mut memory[PAGES / 2 * PAGE_BYTES..][..PAGE_BYTES];
    let begin = Instant::now();
    // SAFETY: the pointer is to the first byte of `page`, a mutable slice of PAGE_BYTES.
    unsafe { page.as_mut_ptr().write_volatile(1) };
    times.record(begin.elapsed());
    if page[0] == 1 && page[1..].iter().all(|byte| *byte == 0) {
        Ok(())
    } else {
        Err(Failure::new("a page has wrong bytes after it was written to"))
    }
}

/// Lends a new object of zeroes, whose loan ends according to `side`, and times a write to the object.
fn write_to_twin(side: Side, times: &mut Latencies) -> Result<()> {
    let refused = || Failure::new(format!("twin memory is not lent: {:?}", uncopy_twin::status()));
    let mut object = Buffer::zeroed(PAGES * PAGE_BYTES)
        .map_err(|error| Failure::new(format!("no twin memory: {error}")))?;
    let (address, len) = (object.as_ptr() as usize, object.len());
    if side == IN_FLIGHT {
        drop(lend(address, len, Until::Dropped).ok_or_else(refused)?);
    } else {
        settle(lend(address, len, Until::Completed).ok_or_else(refused)?);
    }
    write_once(&mut object, times)
}

/// Times a write to memory that is new from the kernel.
fn write_to_new(times: &mut Latencies) -> Result<()> {
    let len = PAGES * PAGE_BYTES;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: without MAP_FIXED, mmap(2) chooses unused addresses, so that no other memory changes.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error()).doing("mapping memory");
    }
    // SAFETY: the mapping is `len` bytes of readable and writable zeroes, to which no other reference exists,
    // and stays mapped until the munmap(2) below.
    let result = unsafe {
        libc::madvise(mapped, len, libc::MADV_NOHUGEPAGE);
        write_once(std::slice::from_raw_parts_mut(mapped.cast(), len), times)
    };
    // SAFETY: the range is the mapping made above, and no reference to it is left.
    unsafe { libc::munmap(mapped, len) };
    result
}

#[expect(clippy::cast_precision_loss, reason = "times of a few digits")]
fn sample(side: Side) -> Result<Sample> {
    let mut times = Latencies::default();
    let begin = Instant::now();
    for _ in 0..OBJECTS {
        match side {
            Side::Plain => write_to_new(&mut times)?,
            side => write_to_twin(side, &mut times)?,
        }
    }
    let elapsed = begin.elapsed();
    Ok(Sample {
        operations_per_s: Some(times.len() as f64 / elapsed.as_secs_f64()),
        latency_p50_us: times.quantile_us(0.5),
        latency_p99_us: times.quantile_us(0.99),
        latency_p999_us: times.quantile_us(0.999),
        verified_bytes: Some(times.len() * PAGE_BYTES as u64),
        ..Sample::default()
    })
}

/// Measures the first writes; leaves them out if twin memory is not lent.
pub fn measure(rounds: Rounds, progress: &mut Progress) -> Comparison {
    let title = "first write to a page";
    let mut comparison = Comparison::new(title, PAGE_BYTES as u64, &[Side::Plain, PROTECTED, IN_FLIGHT]);
    if let Err(why) = write_to_twin(PROTECTED, &mut Latencies::default()) {
        comparison.skip(why.to_string());
        return comparison;
    }
    rounds.run_one(&mut comparison, progress, |side, _| sample(side));
    comparison
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_page_takes_the_write() {
        let comparison = measure(Rounds::exactly(1), &mut Progress::new());
        assert!(comparison.is_flawless(), "{:?}", comparison.notes());
    }
}
