use std::{cell::RefCell, rc::Rc};

use proptest::prelude::*;
use shuntyard_protocol::{Outcome, agent::StepEnd};

use super::*;

/// A disk whose unsynced bytes can be torn, shared with the test.
#[derive(Clone, Debug, Default)]
struct MemoryDisk(Rc<RefCell<Segments>>);

/// Bytes, and how many of them are synced.
type Segments = BTreeMap<u64, (Vec<u8>, usize)>;

impl MemoryDisk {
    /// What is left after the machine died: everything synced and `keep` per mille of the rest.
    fn crash(&self, keep: usize) {
        for (bytes, synced) in self.0.borrow_mut().values_mut() {
            let torn = *synced + (bytes.len() - *synced) * keep / 1000;
            bytes.truncate(torn);
            *synced = torn;
        }
    }
}

impl Disk for MemoryDisk {
    fn list(&self) -> io::Result<Vec<u64>> {
        Ok(self.0.borrow().keys().copied().collect())
    }
    fn append(&mut self, segment: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.borrow_mut().entry(segment).or_default().0.extend_from_slice(bytes);
        Ok(())
    }
    fn read(&mut self, segment: u64, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let segments = self.0.borrow();
        let bytes = &segments.get(&segment).ok_or(io::ErrorKind::NotFound)?.0;
        let at = usize::try_from(at).unwrap().min(bytes.len());
        Ok(bytes[at..bytes.len().min(at + len)].to_vec())
    }
    fn truncate(&mut self, segment: u64, len: u64) -> io::Result<()> {
        let mut segments = self.0.borrow_mut();
        let segment = segments.get_mut(&segment).ok_or(io::ErrorKind::NotFound)?;
        segment.0.truncate(usize::try_from(len).unwrap());
        segment.1 = segment.1.min(segment.0.len());
        Ok(())
    }
    fn sync(&mut self, segment: u64) -> io::Result<()> {
        let mut segments = self.0.borrow_mut();
        let segment = segments.get_mut(&segment).ok_or(io::ErrorKind::NotFound)?;
        segment.1 = segment.0.len();
        Ok(())
    }
    fn remove(&mut self, segment: u64) -> io::Result<()> {
        self.0.borrow_mut().remove(&segment);
        Ok(())
    }
}

/// A coordinator that keeps what it was sent and refuses gaps.
#[derive(Default)]
struct Coordinator {
    streams: BTreeMap<u32, Vec<u8>>,
    facts: Vec<NumberedFact>,
}

impl Coordinator {
    fn take(&mut self, batch: &LogBatch) {
        let mut bytes = &batch.bytes[..];
        for chunk in &batch.chunks {
            let (mine, rest) = bytes.split_at(chunk.len as usize);
            bytes = rest;
            let stream = self.streams.entry(chunk.stream).or_default();
            assert_eq!(chunk.from, stream.len() as u64, "a gap or an overlap");
            assert_eq!(chunk.marks[0].0, chunk.from);
            stream.extend_from_slice(mine);
        }
        assert!(bytes.is_empty());
    }

    fn ends(&self) -> BTreeMap<u32, u64> {
        self.streams.iter().map(|(stream, bytes)| (*stream, bytes.len() as u64)).collect()
    }
}

fn open(log: &MemoryDisk, facts: &MemoryDisk) -> Spool<MemoryDisk> {
    Spool::open(log.clone(), facts.clone(), 8 * 1024 * 1024).unwrap()
}

fn ended(step: u32) -> AttemptFact {
    AttemptFact::StepEnded(StepEnd {
        step,
        at: Timestamp(1),
        outcome: Outcome::Success,
        exit_code: None,
        error: None,
        outputs: None,
        tries: 1,
    })
}

#[test]
fn what_was_written_is_sent_in_order_and_only_once() {
    let mut spool = open(&MemoryDisk::default(), &MemoryDisk::default());
    spool.append_log(1, Timestamp(5), b"one\n").unwrap();
    spool.append_log(2, Timestamp(6), b"\xff\0").unwrap();
    spool.append_log(1, Timestamp(7), b"two\n").unwrap();
    let batch = spool.next_log().unwrap().unwrap();
    assert_eq!(batch.bytes, b"one\n\xff\0two\n");
    let places: Vec<_> = batch.chunks.iter().map(|c| (c.stream, c.from, c.len)).collect();
    assert_eq!(places, [(1, 0, 4), (2, 0, 2), (1, 4, 4)]);
    assert_eq!(spool.next_log().unwrap(), None);
}

#[test]
fn no_more_than_the_window_is_on_its_way() {
    let mut spool = open(&MemoryDisk::default(), &MemoryDisk::default());
    for _ in 0..20 {
        spool.append_log(1, Timestamp(5), &vec![b'x'; RECORD_LOG_BYTES_MAX]).unwrap();
    }
    let mut sent = 0;
    while let Some(batch) = spool.next_log().unwrap() {
        assert!(batch.bytes.len() <= LOG_PAYLOAD_BYTES_MAX);
        sent += batch.bytes.len() as u64;
    }
    assert_eq!(sent, WINDOW_BYTES);
    spool.ack_log(&BTreeMap::from([(1, 1)])).unwrap();
    assert_eq!(spool.next_log().unwrap().unwrap().bytes, b"x");
}

#[test]
fn a_sender_that_keeps_up_goes_on_in_the_next_segment() {
    let (log, facts) = <(MemoryDisk, MemoryDisk)>::default();
    let mut spool = open(&log, &facts);
    let mut coordinator = Coordinator::default();
    for _ in 0..50 {
        spool.append_log(1, Timestamp(5), &vec![b'x'; RECORD_LOG_BYTES_MAX]).unwrap();
        coordinator.take(&spool.next_log().unwrap().unwrap());
        spool.ack_log(&coordinator.ends()).unwrap();
    }
    assert_eq!(coordinator.ends(), *spool.ends());
}

#[test]
fn acknowledged_segments_are_deleted_and_the_ends_survive_that() {
    let (log, facts) = <(MemoryDisk, MemoryDisk)>::default();
    let mut spool = open(&log, &facts);
    spool.append_log(1, Timestamp(5), b"early").unwrap();
    for _ in 0..40 {
        spool.append_log(2, Timestamp(5), &vec![b'x'; RECORD_LOG_BYTES_MAX]).unwrap();
    }
    assert_eq!(log.list().unwrap(), [1, 2, 3]);
    spool.ack_log(&BTreeMap::from([(1, 5), (2, 40 * 64 * 1024)])).unwrap();
    assert_eq!(log.list().unwrap(), [3]);
    let again = open(&log, &facts);
    assert_eq!(again.ends(), &BTreeMap::from([(1, 5), (2, 40 * 64 * 1024)]));
}

#[test]
fn a_full_spool_says_so_until_something_is_acknowledged() {
    let (log, facts) = <(MemoryDisk, MemoryDisk)>::default();
    let mut spool = Spool::open(log, facts, 2 * 1024 * 1024).unwrap();
    let mut written = 0;
    while !spool.is_full() {
        spool.append_log(1, Timestamp(5), &vec![b'x'; RECORD_LOG_BYTES_MAX]).unwrap();
        written += RECORD_LOG_BYTES_MAX as u64;
    }
    assert!(spool.log_bytes() < 2 * 1024 * 1024 + 2 * RECORD_LOG_BYTES_MAX as u64);
    spool.ack_log(&BTreeMap::from([(1, written)])).unwrap();
    assert!(!spool.is_full());
}

#[test]
fn many_facts_go_in_several_frames_and_the_open_steps_are_known() {
    let (log, facts) = <(MemoryDisk, MemoryDisk)>::default();
    let mut spool = open(&log, &facts);
    let many = u32::try_from(FACTS_PER_FRAME_MAX).unwrap();
    for step in 0..many {
        spool.append_fact(&AttemptFact::StepStarted { step, at: Timestamp(1) }).unwrap();
    }
    for step in 1..many {
        spool.append_fact(&ended(step)).unwrap();
    }
    assert!(spool.next_facts().unwrap().is_empty(), "nothing is sent before it is synced");
    spool.sync().unwrap();
    assert_eq!(spool.next_facts().unwrap().len(), FACTS_PER_FRAME_MAX);
    assert_eq!(spool.next_facts().unwrap().len(), FACTS_PER_FRAME_MAX - 1);
    assert!(spool.next_facts().unwrap().is_empty());
    facts.crash(0);
    assert_eq!(open(&log, &facts).open_steps(), [0]);
}

#[test]
fn a_frame_has_no_more_marks_than_fit_beside_its_log() {
    let mut spool = open(&MemoryDisk::default(), &MemoryDisk::default());
    for at in 0..=i64::try_from(MARKS_PER_FRAME_MAX).unwrap() {
        spool.append_log(1, Timestamp(at), b"x").unwrap();
    }
    let first = spool.next_log().unwrap().unwrap();
    assert_eq!(first.chunks[0].marks.len(), MARKS_PER_FRAME_MAX);
    assert_eq!(spool.next_log().unwrap().unwrap().bytes, b"x");
}

#[test]
fn a_frame_of_facts_stays_below_its_limit() {
    let mut spool = open(&MemoryDisk::default(), &MemoryDisk::default());
    let long = |bytes: usize| {
        let AttemptFact::StepEnded(end) = ended(1) else { panic!("it is one") };
        AttemptFact::StepEnded(StepEnd { error: Some("x".repeat(bytes)), ..end })
    };
    for bytes in [FACTS_FRAME_BYTES_MAX / 2, FACTS_FRAME_BYTES_MAX / 2, 1] {
        spool.append_fact(&long(bytes)).unwrap();
    }
    spool.sync().unwrap();
    assert_eq!(spool.next_facts().unwrap().len(), 1);
    assert_eq!(spool.next_facts().unwrap().len(), 2);
}

#[test]
fn a_record_at_the_limit_passes_and_one_byte_more_is_refused() {
    use journal::RECORD_BYTES_MAX;
    let disk = MemoryDisk::default();
    let mut journal = Journal::open(disk.clone(), |_, _| Ok(())).unwrap();
    let place = journal.append(&vec![7; RECORD_BYTES_MAX]).unwrap();
    assert!(journal.append(&vec![7; RECORD_BYTES_MAX + 1]).is_err());
    assert_eq!(journal.read(place).unwrap().unwrap().len(), RECORD_BYTES_MAX);
    let mut lengths = Vec::new();
    let visit = |_, record: &[u8]| {
        lengths.push(record.len());
        Ok(())
    };
    Journal::open(disk, visit).unwrap();
    assert_eq!(lengths, [RECORD_BYTES_MAX]);
}

#[derive(Clone, Debug)]
enum Op {
    Write(u32, usize),
    Fact(u32),
    Send,
    Ack,
    Reconnect,
    ProcessDies,
    MachineDies(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0u32..3, 1usize..RECORD_LOG_BYTES_MAX).prop_map(|(s, n)| Op::Write(s, n)),
        1 => (0u32..9).prop_map(Op::Fact),
        4 => Just(Op::Send),
        2 => Just(Op::Ack),
        1 => Just(Op::Reconnect),
        1 => Just(Op::ProcessDies),
        1 => (0usize..1000).prop_map(Op::MachineDies),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_byte_and_no_fact_is_lost_doubled_or_changed(ops in proptest::collection::vec(op(), 1..120)) {
        let (log, facts) = <(MemoryDisk, MemoryDisk)>::default();
        let mut spool = open(&log, &facts);
        let mut written: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        let (mut fact_count, mut counter) = (0u64, 0u8);
        let mut coordinator = Coordinator::default();
        for op in ops {
            match op {
                Op::Write(stream, len) => {
                    let bytes: Vec<u8> =
                        (0..len).map(|_| { counter = counter.wrapping_mul(31).wrapping_add(7); counter }).collect();
                    spool.append_log(stream, Timestamp(5), &bytes).unwrap();
                    written.entry(stream).or_default().extend(bytes);
                }
                Op::Fact(step) => {
                    fact_count += 1;
                    prop_assert_eq!(spool.append_fact(&ended(step)).unwrap(), fact_count);
                    spool.sync().unwrap();
                }
                Op::Send => {
                    if let Some(batch) = spool.next_log().unwrap() { coordinator.take(&batch); }
                    for fact in spool.next_facts().unwrap() {
                        if fact.seq > coordinator.facts.len() as u64 { coordinator.facts.push(fact); }
                    }
                }
                Op::Ack => {
                    spool.ack_log(&coordinator.ends()).unwrap();
                    spool.ack_facts(coordinator.facts.len() as u64);
                }
                Op::Reconnect => spool.online(&coordinator.ends(), coordinator.facts.len() as u64).unwrap(),
                Op::ProcessDies => {
                    spool = open(&log, &facts);
                    spool.online(&coordinator.ends(), coordinator.facts.len() as u64).unwrap();
                }
                Op::MachineDies(keep) => {
                    log.crash(keep);
                    facts.crash(keep);
                    spool = open(&log, &facts);
                    // What was neither synced nor sent may be gone: the rest must be a prefix.
                    for (stream, bytes) in &mut written {
                        let kept = spool.ends().get(stream).copied().unwrap_or(0);
                        let kept = kept.max(coordinator.streams.get(stream).map_or(0, |b| b.len() as u64));
                        bytes.truncate(usize::try_from(kept).unwrap());
                    }
                    // A stream that the coordinator knows better cannot go on in this spool.
                    if coordinator.ends().iter().any(|(s, e)| spool.ends().get(s).copied().unwrap_or(0) < *e) {
                        return Ok(());
                    }
                    spool.online(&coordinator.ends(), coordinator.facts.len() as u64).unwrap();
                }
            }
        }
        spool.online(&coordinator.ends(), coordinator.facts.len() as u64).unwrap();
        while let Some(batch) = spool.next_log().unwrap() {
            coordinator.take(&batch);
            spool.ack_log(&coordinator.ends()).unwrap();
        }
        coordinator.facts.extend(spool.next_facts().unwrap());
        prop_assert_eq!(coordinator.facts.len() as u64, fact_count);
        written.retain(|_, bytes| !bytes.is_empty());
        prop_assert_eq!(coordinator.streams, written);
    }
}

#[test]
fn zeros_that_a_crash_left_are_no_record() {
    let (log, facts) = (MemoryDisk::default(), MemoryDisk::default());
    let mut spool = Spool::open(log.clone(), facts.clone(), u64::MAX).unwrap();
    spool.append_fact(&AttemptFact::StepStarted { step: 0, at: Timestamp(1) }).unwrap();
    spool.sync().unwrap();
    for (bytes, _) in facts.0.borrow_mut().values_mut() {
        bytes.extend([0; 40]);
    }
    let mut spool = Spool::open(log, facts, u64::MAX).unwrap();
    spool.sync().unwrap();
    assert_eq!(spool.next_facts().unwrap().len(), 1);
}
