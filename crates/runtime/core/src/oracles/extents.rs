//! Extents compared with one bit per page.

use super::bytes::Bytes;
use crate::addr::ArenaPages;
use crate::extents::Extents;

const PAGES: u32 = 512;

/// Takes and frees runs of pages as `data` says.
///
/// # Panics
/// If a page is handed out twice or lost, or an invariant is broken.
pub fn extents(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let mut extents = Extents::new();
    extents.insert(ArenaPages::new(0, PAGES));
    let mut free = [true; PAGES as usize];
    let mut taken: Vec<ArenaPages> = Vec::new();
    while !bytes.is_empty() {
        let choice = bytes.below(4);
        let found = match choice {
            0 => extents.take(1 + bytes.below(64)),
            1 => extents.take_longest(1 + bytes.below(64)),
            _ if taken.is_empty() => None,
            // Part of a run may be freed before the rest.
            _ => {
                let index = bytes.below(u32::try_from(taken.len()).expect("few")) as usize;
                let run = taken.swap_remove(index);
                let middle = run.start + bytes.below(run.len() + 1);
                let (back, rest) = (ArenaPages::new(run.start, middle), ArenaPages::new(middle, run.end));
                (back.start..back.end).for_each(|page| free[page as usize] = true);
                extents.insert(back);
                if !rest.is_empty() {
                    taken.push(rest);
                }
                None
            }
        };
        if let Some(run) = found {
            for page in run.start..run.end {
                assert!(std::mem::replace(&mut free[page as usize], false), "page {page} was not free");
            }
            taken.push(run);
        }
        assert!(extents.is_valid());
        assert_eq!(extents.pages(), free.iter().filter(|page| **page).count());
        let longest = free.split(|page| !page).map(<[bool]>::len).max().unwrap_or(0);
        assert_eq!(extents.longest() as usize, longest, "extents that lie next to one another are one");
    }
}
