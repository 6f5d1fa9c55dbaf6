//! Tests of what a keeper learns from the messages of its servers and decides after their ends.

use super::*;

/// A server's side and a keeper's side.
fn linked() -> (KeeperLink, LinkSockets) {
    let (ours, theirs) = LinkSockets::pair().unwrap();
    let (signals, keeper) = (KeptSignals::block().unwrap(), KeeperId { pid: 1, start: 0 });
    signals.unblock();
    (KeeperLink::new(theirs, Inheritance::default(), signals, keeper), ours)
}

/// Receives all messages of a server.
fn hear(ours: &LinkSockets, kept: &mut KeptState) {
    let actions = KeeperActions { ready: &|| Ok(()), notify: &|_| {}, report: &|_| {} };
    receive_all(ours, &actions, kept, &mut true).unwrap();
}

#[test]
fn a_server_loses_nothing_while_all_its_writes_are_durable() {
    let (link, ours) = linked();
    let mut kept = KeptState::default();
    let mut lost_after = |sent: Result<()>| {
        sent.unwrap();
        hear(&ours, &mut kept);
        kept.loses_writes()
    };
    let memory = tempfile::tempfile().unwrap();
    assert!(lost_after(link.keep_nothing()));
    assert!(!lost_after(link.hold(&memory)));
    // The disk grows, with and without memory afterwards.
    assert!(!lost_after(link.release()));
    assert!(!lost_after(link.hold(&memory)));
    assert!(!lost_after(link.release()));
    assert!(lost_after(link.keep_nothing()));
}

/// Without that the test hangs.
#[test]
fn a_server_does_not_wait_for_a_keeper_that_takes_nothing() {
    let (link, ours) = linked();
    for _ in 0..5000 {
        link.notify("WATCHDOG=1").unwrap();
    }
    // There is room for everything that must not be lost.
    link.hold(&tempfile::tempfile().unwrap()).unwrap();
    link.ready().unwrap();
    let mut kept = KeptState::default();
    hear(&ours, &mut kept);
    assert!(kept.memory.is_some() && kept.is_ready);
    link.notify("STOPPING=1").unwrap();
    assert_eq!(ours.next_state().unwrap().as_deref(), Some("STOPPING=1"));
    let full = (0..5000).find_map(|_| link.keep_nothing().err()).unwrap();
    assert!(full.to_string().contains("kill -CONT 1"), "{full}");
    assert!(!full.may_pass());
}

/// The state of a keeper with a server that is not the first one, and has writes in memory.
fn with_writes() -> KeptState {
    let memory = Some(tempfile::tempfile().unwrap());
    KeptState { memory, was_ready: true, predecessors: 1, ..KeptState::default() }
}

#[test]
fn a_keeper_gives_up_after_errors_and_not_because_of_an_obstacle() {
    let (mut kept, now) = (with_writes(), Instant::now());
    let mut pauses = Vec::new();
    for _ in 0..1000 {
        kept.obstacle = Some("in use".into());
        match kept.after_exit(5, now) {
            (NextStep::Start { after }, None) => pauses.push(after),
            other => panic!("{other:?}"),
        }
        assert_eq!(kept.inheritance().unwrap().obstacle.as_deref(), Some("in use"));
    }
    assert!(pauses[0] == PAUSE && pauses.is_sorted() && pauses[999] == LONGEST_PAUSE);
    // Other errors count from the first one on.
    for _ in 1..MOST_FAILED {
        assert_eq!(kept.after_exit(20, now).0, NextStep::Start { after: PAUSE });
    }
    let (step, reported) = kept.after_exit(20, now);
    assert_eq!(step, NextStep::End(20));
    assert!(reported.unwrap().to_string().contains("5 servers in a row"));
}

#[test]
fn a_keeper_that_was_told_to_end_gives_up_because_of_an_obstacle_some_time() {
    let (mut kept, now) = (with_writes(), Instant::now());
    let obstructed_at = |kept: &mut KeptState, now| {
        kept.obstacle = Some("in use".into());
        kept.after_exit(5, now)
    };
    // The time before it was told to end does not count.
    assert!(matches!(obstructed_at(&mut kept, now).0, NextStep::Start { .. }));
    kept.told_to_end = Some(Signal::TERM);
    let told = now + 100 * ENDS_WITHIN;
    for at in [told, told + ENDS_WITHIN / 2] {
        // A server that opens the disk and cannot close it gives no more time.
        kept.is_ready = true;
        assert!(matches!(obstructed_at(&mut kept, at).0, NextStep::Start { .. }));
    }
    let (step, reported) = obstructed_at(&mut kept, told + ENDS_WITHIN);
    assert_eq!(step, NextStep::End(5));
    let reported = reported.unwrap().to_string();
    assert!(reported.contains("found: in use") && reported.contains(LOST), "{reported}");
}

/// Nothing is lost then. Another client may have the disk, and change it.
#[test]
fn an_obstacle_without_writes_ends_the_keeper() {
    for is_ready in [false, true] {
        let mut kept = KeptState { memory: None, all_durable: true, is_ready, ..with_writes() };
        kept.obstacle = Some("in use".into());
        let (step, reported) = kept.after_exit(5, Instant::now());
        assert!(step == NextStep::End(5) && reported.is_none());
    }
}

/// It tells its user of the obstacle.
#[test]
fn an_obstacle_of_the_first_server_ends_the_keeper() {
    let mut kept = KeptState { predecessors: 0, was_ready: false, ..with_writes() };
    kept.obstacle = Some("in use".into());
    assert_eq!(kept.after_exit(5, Instant::now()).0, NextStep::End(5));
}
