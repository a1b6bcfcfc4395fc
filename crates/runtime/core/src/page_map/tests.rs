//! The page map compared with an array of one state per page.

use super::*;
use proptest::prelude::*;

const PAGES: u32 = 40;

#[derive(Clone, Debug)]
enum Operation {
    Present(PageRange),
    Empty(PageRange),
    View(PageRange, u8, usize, SiteId),
    FreeAll,
}

fn range() -> impl Strategy<Value = PageRange> {
    // Short ranges split the map into several chunks, long ones merge them again.
    prop_oneof![
        4 => (0..PAGES, 0u32..4).prop_map(|(start, len)| PageRange::new(start, (start + len).min(PAGES))),
        1 => (0..PAGES, 0..=PAGES).prop_map(|(a, b)| PageRange::new(a.min(b), a.max(b))),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        range().prop_map(Operation::Present),
        range().prop_map(Operation::Empty),
        (range(), 0u8..3, 0usize..3, 0u16..2).prop_map(|(pages, segment, offset, site)| Operation::View(
            pages,
            segment,
            offset * 45,
            site
        )),
        Just(Operation::FreeAll),
    ]
}

proptest! {
    #[test]
    fn random_operations_agree_with_one_state_per_page(operations in prop::collection::vec(operation(), 1..120)) {
        let mut map = PageMap::new();
        let mut model: Vec<State<u8>> = (0..PAGES).map(|_| State::Present).collect();
        for operation in operations {
            let before = map.views();
            let mut dropped = Dropped::new();
            let mut added = 0;
            match operation {
                Operation::Present(pages) => {
                    map.set_present(pages, &mut dropped);
                    for page in pages.start..pages.end { model[page as usize] = State::Present; }
                }
                Operation::Empty(pages) => {
                    map.set_empty(pages, &mut dropped);
                    for page in pages.start..pages.end { model[page as usize] = State::Empty; }
                }
                Operation::View(pages, segment, offset_bytes, site) => {
                    let view = View { segment, offset_bytes, site };
                    map.set_viewed(pages, view.clone(), &mut dropped);
                    added = usize::from(!pages.is_empty());
                    for page in pages.start..pages.end {
                        model[page as usize] = State::Viewed(view.skip(page - pages.start));
                    }
                }
                Operation::FreeAll => {
                    map.empty_all_views(&mut dropped);
                    for state in &mut model {
                        if matches!(state, State::Viewed(_)) { *state = State::Empty; }
                    }
                }
            }
            prop_assert!(map.is_valid());
            // Each removed view passes on its handle; a split adds one clone.
            prop_assert!(dropped.len() <= before + added + 2);
            let mut pages_seen = 0;
            map.for_each(PageRange::new(0, PAGES), |pages, state| {
                for page in pages.start..pages.end {
                    let expected = &model[page as usize];
                    let got = match &state {
                        State::Viewed(view) => State::Viewed(view.skip(page - pages.start)),
                        other => other.clone(),
                    };
                    assert_eq!(&got, expected, "page {page}");
                    pages_seen += 1;
                }
            });
            prop_assert_eq!(pages_seen, PAGES);
            let mut kinds = std::vec::Vec::new();
            map.for_each_kind(PageRange::new(0, PAGES), |pages, kind| {
                kinds.extend((pages.start..pages.end).map(|_| kind));
            });
            let kind = |state: &State<u8>| match state {
                State::Present => PageKind::Present,
                State::Empty => PageKind::Empty,
                State::Viewed(_) => PageKind::Viewed,
            };
            prop_assert!(kinds.into_iter().eq(model.iter().map(kind)));
            let mut views = 0;
            map.for_each_view(|pages, view| {
                views += 1;
                for page in pages.start..pages.end {
                    let got = State::Viewed(view.skip(page - pages.start));
                    assert_eq!(got, model[page as usize], "page {page}");
                }
            });
            prop_assert_eq!(views, map.views());
            for page in 0..PAGES {
                let expected = match &model[page as usize] {
                    State::Viewed(view) => Some((&view.segment, view.offset_bytes)),
                    _ => None,
                };
                prop_assert_eq!(map.target(page), expected);
                let one = PageRange::new(page, page + 1);
                let expected = &model[page as usize];
                prop_assert_eq!(map.is_present(one), *expected == State::Present);
                prop_assert_eq!(&map.at(page, one).1, expected);
                let (around, state) = map.at(page, PageRange::new(0, PAGES));
                prop_assert!(around.start <= page && page < around.end);
                if state == State::Present {
                    prop_assert!(model[around.start as usize..around.end as usize].iter().all(|state| *state == State::Present));
                    prop_assert!(around.end == PAGES || model[around.end as usize] != State::Present);
                    prop_assert!(around.start == 0 || model[around.start as usize - 1] != State::Present);
                }
            }
            let absent = model.iter().filter(|state| **state != State::Present).count();
            prop_assert_eq!(map.absent_pages() as usize, absent);
        }
    }

    #[test]
    fn references_equal_views(operations in prop::collection::vec(operation(), 1..120)) {
        use std::sync::Arc;
        let segments: Vec<Arc<u8>> = (0..3).map(Arc::new).collect();
        let mut map = PageMap::new();
        for operation in operations {
            let mut dropped = Dropped::new();
            match operation {
                Operation::Present(pages) => map.set_present(pages, &mut dropped),
                Operation::Empty(pages) => map.set_empty(pages, &mut dropped),
                Operation::View(pages, segment, offset_bytes, site) => {
                    let segment = Arc::clone(&segments[usize::from(segment)]);
                    map.set_viewed(pages, View { segment, offset_bytes, site }, &mut dropped);
                }
                Operation::FreeAll => map.empty_all_views(&mut dropped),
            }
            drop(dropped);
            let references: usize = segments.iter().map(|segment| Arc::strong_count(segment) - 1).sum();
            prop_assert_eq!(references, map.views());
        }
    }
}

#[test]
fn a_touch_in_the_middle_splits_a_view() {
    let mut map = PageMap::new();
    let mut dropped = Dropped::new();
    map.set_viewed(PageRange::new(2, 10), View { segment: 'a', offset_bytes: 45, site: 0 }, &mut dropped);
    map.set_present(PageRange::new(5, 6), &mut dropped);
    assert_eq!(map.views(), 2);
    let (pages, state) = map.at(7, PageRange::new(0, 12));
    assert_eq!(pages, PageRange::new(6, 10));
    assert_eq!(state, State::Viewed(View { segment: 'a', offset_bytes: 45 + 4 * PAGE_BYTES, site: 0 }));
}
