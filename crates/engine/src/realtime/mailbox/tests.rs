//! What comes out of a mailbox, by what was put in.

use super::*;

fn seq(raw: u64) -> CommitSeq {
    CommitSeq::new(raw).unwrap()
}

fn mailbox(bytes_max: usize) -> (Mailbox, Arc<Gauges>) {
    let gauges = Arc::<Gauges>::default();
    (Mailbox::new(Arc::clone(&gauges), bytes_max), gauges)
}

fn bytes(len: usize) -> Bytes {
    vec![b'x'; len].into()
}

/// Everything that waits, in words.
fn taken(mailbox: &Mailbox) -> Vec<String> {
    let next = || mailbox.try_next();
    std::iter::from_fn(|| match next()? {
        Outgoing::Close(_) => None,
        Outgoing::Delta(frame) => Some(format!("delta {}", frame.len())),
        Outgoing::Text(text) => {
            let parsed = ServerControl::parse(str::from_utf8(&text).unwrap());
            Some(match parsed {
                Ok(ServerControl::WakeUp(wake)) => {
                    format!("wake {} {}", wake.cursor, wake.reason.as_str())
                }
                _ => format!("text {}", text.len()),
            })
        }
    })
    .collect()
}

#[test]
fn messages_come_out_in_the_order_they_came_in() {
    let (mailbox, _) = mailbox(100);
    mailbox.post_text(bytes(5));
    assert!(mailbox.offer_delta(bytes(7)));
    mailbox.post_snapshot(bytes(9));
    assert_eq!(taken(&mailbox), ["text 5", "delta 7", "text 9"]);
}

#[test]
fn a_wake_up_that_waits_grows_and_takes_the_graver_reason() {
    let (mailbox, gauges) = mailbox(100);
    for (cursor, reason) in [
        (4, WakeReason::CatchupRequired),
        (9, WakeReason::ResetRequired),
        (6, WakeReason::DeltaTooLarge),
    ] {
        mailbox.post_wake_up(seq(cursor), reason, 0);
    }
    assert_eq!(taken(&mailbox), ["wake 9 reset-required"]);
    assert!(!mailbox.amend_wake_up(seq(10), WakeReason::CatchupRequired));
    assert_eq!(taken(&mailbox), [""; 0]);
    assert_eq!(gauges.wake_ups.load(Ordering::Relaxed), 1);
}

#[test]
fn a_delta_that_does_not_fit_is_refused_unless_nothing_waits() {
    let (mailbox, _) = mailbox(10);
    assert!(mailbox.offer_delta(bytes(50)));
    assert!(!mailbox.offer_delta(bytes(1)));
    assert!(mailbox.drop_deltas());
    assert!(!mailbox.drop_deltas());
    assert!(mailbox.offer_delta(bytes(10)));
    assert_eq!(taken(&mailbox), ["delta 10"]);
}

#[test]
fn taking_deltas_back_leaves_the_rest() {
    let (mailbox, _) = mailbox(100);
    mailbox.post_text(bytes(3));
    assert!(mailbox.offer_delta(bytes(4)));
    mailbox.post_wake_up(seq(1), WakeReason::CatchupRequired, 0);
    mailbox.drop_deltas();
    assert_eq!(taken(&mailbox), ["text 3", "wake 1 catchup-required"]);
}

#[test]
fn a_client_that_leaves_its_texts_is_cut_off_and_nothing_else_comes() {
    let (mailbox, gauges) = mailbox(10);
    for _ in 0..3 {
        mailbox.post_text(bytes(8));
    }
    let closed = Some(Outgoing::Close(CloseReason::Overloaded));
    assert_eq!(mailbox.try_next(), closed);
    mailbox.post_text(bytes(1));
    mailbox.post_wake_up(seq(1), WakeReason::CatchupRequired, 0);
    assert!(!mailbox.offer_delta(bytes(1)));
    assert_eq!(mailbox.try_next(), closed);
    assert_eq!(gauges.queued_bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn a_crowd_of_peers_is_told_at_once_within_a_bound_of_its_own() {
    let (mailbox, _) = mailbox(10);
    for _ in 0..16 {
        mailbox.post_snapshot(bytes(10));
    }
    assert!(mailbox.offer_delta(bytes(10)));
    assert_eq!(taken(&mailbox).len(), 17);
    for _ in 0..17 {
        mailbox.post_snapshot(bytes(10));
    }
    let closed = Some(Outgoing::Close(CloseReason::Overloaded));
    assert_eq!(mailbox.try_next(), closed);
}

#[test]
fn a_shared_frame_is_charged_once_until_the_last_holder_lets_go() {
    let gauges = Arc::<Gauges>::default();
    let queued = || gauges.queued_bytes.load(Ordering::Relaxed);
    let one = Mailbox::new(Arc::clone(&gauges), 100);
    let other = Mailbox::new(Arc::clone(&gauges), 100);
    let frame = gauges.frame(bytes(30));
    assert!(one.offer_delta(frame.clone()) && other.offer_delta(frame));
    assert_eq!(queued(), 30);
    drop(one);
    assert_eq!(queued(), 30);
    let out = other.try_next();
    assert_eq!(queued(), 30);
    drop(out);
    assert_eq!(queued(), 0);
}

#[test]
fn a_mailbox_that_is_dropped_gives_back_what_it_was_charged() {
    let (mailbox, gauges) = mailbox(100);
    mailbox.post_text(bytes(5));
    mailbox.post_snapshot(bytes(6));
    assert_eq!(gauges.queued_bytes.load(Ordering::Relaxed), 11);
    drop(mailbox);
    assert_eq!(gauges.queued_bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn room_for_all_is_bounded_but_one_frame_always_fits() {
    let gauges = Arc::<Gauges>::default();
    assert!(gauges.has_room(50, 10));
    let held = gauges.frame(bytes(8));
    assert!(gauges.has_room(2, 10) && !gauges.has_room(3, 10));
    drop(held);
}

#[test]
fn whoever_waits_is_woken_by_what_comes_and_by_the_end() {
    let (mailbox, _) = mailbox(1);
    let woken = Arc::new(AtomicUsize::new(0));
    struct Count(Arc<AtomicUsize>);
    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let waker = Waker::from(Arc::new(Count(Arc::clone(&woken))));
    let context = Context::from_waker(&waker);
    assert!(mailbox.poll_next(&context).is_pending());
    mailbox.post_wake_up(seq(1), WakeReason::CatchupRequired, 0);
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    assert!(mailbox.poll_next(&context).is_ready());
    assert!(mailbox.poll_next(&context).is_pending());
    mailbox.post_text(bytes(3));
    assert_eq!(woken.load(Ordering::Relaxed), 2);
    assert!(mailbox.poll_next(&context).is_ready());
}
