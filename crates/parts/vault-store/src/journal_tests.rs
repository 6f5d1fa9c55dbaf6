//! Pages of the journal that are taken, given back and taken again.

use super::*;
use lacuna_contracts::Secret;
use lacuna_sim::CrashFolder;

fn journal() -> Journal {
    let keys = Arc::new(StoreKeys::derive(&Secret::copy_from(&[1; 32]), &[2; 16]));
    Journal::create(&CrashFolder::new(), JournalSize::default(), keys).unwrap()
}

/// `shrink` keeps pages that were taken after its caller found the journal empty.
#[test]
fn pages_that_were_taken_are_not_given_back() {
    let journal = journal();
    let pages = vec![7; 2 * KEPT as usize * PAGE];
    let place = journal.take(2 * KEPT).unwrap();
    journal.write(place, &pages).unwrap();
    journal.shrink(0, ShrinkTo::Closed).unwrap();
    journal.shrink(1, ShrinkTo::Closed).unwrap();
    let mut found = vec![0; pages.len()];
    journal.read(place, &mut found).unwrap();
    assert!(found == pages);
    assert_eq!([0, 1].map(|area| journal.pages_in(area)), [2 * KEPT, KEPT]);
}

/// Pages that were given back are taken again, up to the next record.
#[test]
fn pages_are_taken_again_until_a_record_follows() {
    let journal = journal();
    let [first, next] = [1, 2].map(|pages| journal.take(pages).unwrap());
    assert_eq!((first.page, next.page), (0, 1));
    journal.return_pages(first, 1);
    let taken = [(); 2].map(|()| journal.take_another().unwrap().page);
    assert_eq!(taken, [0, 3]);
    journal.return_pages(next, 2);
    journal.return_pages(JournalPlace { page: 3, ..next }, 1);
    // The last page came back to the tail.
    assert_eq!((journal.pages_since_record(), journal.take_another().unwrap().page), (3, 1));
    assert_eq!(journal.take_record(1, false).unwrap().page, 3);
    assert_eq!(journal.take_another().unwrap().page, 4);
    assert_eq!(journal.pages_since_record(), 1);
}
