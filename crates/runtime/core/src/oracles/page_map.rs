//! A page map compared with one state per page.

use super::bytes::Bytes;
use crate::addr::{PAGE_BYTES, PageRange};
use crate::page_map::{Dropped, PageMap, State, View};
use std::sync::Arc;

const PAGES: u32 = 192;

/// State of a page, with the target of the page's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Present,
    Empty,
    Viewed { segment: usize, offset_bytes: usize },
}

/// Makes pages present, empty and viewed as `data` says.
///
/// # Panics
/// If the map differs from the model, or the references to segments are not as many as the views.
pub fn page_map(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let segments: Vec<Arc<usize>> = (0..4).map(Arc::new).collect();
    let mut map: PageMap<Arc<usize>> = PageMap::new();
    let mut model = [Page::Present; PAGES as usize];
    while !bytes.is_empty() {
        let start = bytes.below(PAGES);
        // Mostly short, so that the map has many runs in several chunks.
        let max_len = if bytes.below(8) == 0 { PAGES } else { 4 };
        let pages = PageRange::new(start, start + bytes.below((PAGES - start + 1).min(max_len)));
        let range = pages.start as usize..pages.end as usize;
        let mut dropped = Dropped::new();
        match bytes.below(5) {
            0 => {
                map.set_present(pages, &mut dropped);
                model[range].fill(Page::Present);
            }
            1 => {
                map.set_empty(pages, &mut dropped);
                model[range].fill(Page::Empty);
            }
            2 if bytes.below(8) == 0 => {
                map.empty_all_views(&mut dropped);
                for page in &mut model {
                    if matches!(page, Page::Viewed { .. }) {
                        *page = Page::Empty;
                    }
                }
            }
            _ => {
                let (segment, offset_bytes) = (bytes.below(4) as usize, bytes.below(3) as usize * 45);
                let view = View { segment: Arc::clone(&segments[segment]), offset_bytes, site: 0 };
                map.set_viewed(pages, view, &mut dropped);
                for (index, page) in model[range].iter_mut().enumerate() {
                    *page = Page::Viewed { segment, offset_bytes: offset_bytes + index * PAGE_BYTES };
                }
            }
        }
        drop(dropped);
        compare(&map, &model);
        let references: usize = segments.iter().map(|segment| Arc::strong_count(segment) - 1).sum();
        assert_eq!(references, map.views(), "references are not views");
    }
}

fn compare(map: &PageMap<Arc<usize>>, model: &[Page]) {
    assert!(map.is_valid());
    let mut next = 0;
    map.for_each(PageRange::new(0, PAGES), |pages, state| {
        assert_eq!(pages.start, next);
        next = pages.end;
        for page in pages.start..pages.end {
            let skip_bytes = (page - pages.start) as usize * PAGE_BYTES;
            let found = match &state {
                State::Present => Page::Present,
                State::Empty => Page::Empty,
                State::Viewed(view) => {
                    Page::Viewed { segment: *view.segment, offset_bytes: view.offset_bytes + skip_bytes }
                }
            };
            assert_eq!(found, model[page as usize], "page {page}");
        }
    });
    assert_eq!(next, PAGES);
    let absent = model.iter().filter(|page| **page != Page::Present).count();
    assert_eq!(map.absent_pages() as usize, absent);
    assert_eq!(map.is_all_present(), absent == 0);
}
