//! Round trips of frames, and reads of arbitrary bytes.

use std::fmt::Debug;
use std::net::IpAddr;

use lockstep_supervisor_protocol::{
    Checkpoint, ChildExit, ExitReason, FrameError, FrameReader, FromAgent, FromSupervisor,
    MAX_BODY, Message, Progress, ProgressLimits, Release, Rendezvous, SavePolicy, SaveReply,
    SaveRequest, Text, VERSIONS, Versions,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn text<const MAX: usize>() -> impl Strategy<Value = Text<MAX>> {
    prop_oneof![
        ".{0,40}".prop_map(Text::cut),
        Just(Text::cut("ü".repeat(MAX)))
    ]
}

fn coordinators() -> impl Strategy<Value = Rendezvous> {
    (any::<IpAddr>(), any::<u16>()).prop_map(|(ip, port)| Rendezvous { ip, port })
}

fn reasons() -> impl Strategy<Value = ExitReason> {
    prop_oneof![
        Just(ExitReason::Completed),
        Just(ExitReason::Error),
        Just(ExitReason::OomKilled),
        Just(ExitReason::StartError),
        Just(ExitReason::Terminated),
        Just(ExitReason::Hang),
    ]
}

fn from_supervisor() -> impl Strategy<Value = FromSupervisor> {
    let attempt = || 1..=u64::MAX;
    prop_oneof![
        (any::<[u16; 2]>(), text(), any::<u64>()).prop_map(
            |([oldest, newest], pod_uid, start_id)| {
                FromSupervisor::Hello {
                    versions: Versions { oldest, newest },
                    pod_uid,
                    start_id,
                }
            }
        ),
        any::<u64>().prop_map(|attempt| FromSupervisor::Arrived { attempt }),
        attempt().prop_map(|attempt| FromSupervisor::Started { attempt }),
        (
            attempt(),
            any::<u8>(),
            option::of(any::<u8>()),
            any::<u32>(),
            reasons(),
            text(),
            any::<u64>()
        )
            .prop_map(
                |(attempt, code, signal, oom_kills, reason, message, time)| {
                    let exit = ChildExit {
                        attempt,
                        code,
                        signal,
                        oom_kills,
                        reason,
                        message,
                    };
                    FromSupervisor::Exited { exit, time }
                }
            ),
        (attempt(), any::<u32>(), text()).prop_map(|(attempt, count, message)| {
            FromSupervisor::Survivors {
                attempt,
                count,
                message,
            }
        }),
        (
            attempt(),
            any::<[u64; 2]>(),
            option::of(any::<[u64; 2]>()),
            text()
        )
            .prop_map(|(attempt, [step, step_time], checkpoint, words)| {
                FromSupervisor::Progress(Progress {
                    attempt,
                    step,
                    step_time,
                    checkpoint: checkpoint.map(|[step, time]| Checkpoint { step, time }),
                    words,
                })
            }),
        (request(), answer())
            .prop_map(|(request, reply)| { FromSupervisor::Checkpoint { request, reply } }),
        attempt().prop_map(|attempt| FromSupervisor::PassesStops { attempt }),
    ]
}

fn answer() -> impl Strategy<Value = SaveReply> {
    prop_oneof![
        Just(SaveReply::Requested),
        any::<u64>().prop_map(SaveReply::Saved),
        Just(SaveReply::Unsupported),
    ]
}

fn limits() -> impl Strategy<Value = ProgressLimits> {
    any::<[u32; 2]>().prop_map(|[timeout_seconds, startup_seconds]| ProgressLimits {
        timeout_seconds,
        startup_seconds,
    })
}

fn save_policy() -> impl Strategy<Value = SavePolicy> {
    (option::of(any::<u8>()), any::<[u32; 2]>()).prop_map(
        |(signal, [timeout_seconds, hold_stop_seconds])| SavePolicy {
            signal,
            timeout_seconds,
            hold_stop_seconds,
        },
    )
}

fn request() -> impl Strategy<Value = SaveRequest> {
    let fields = (1..=u64::MAX, text(), text(), any::<u64>(), any::<bool>());
    fields.prop_map(|(attempt, id, reason, deadline, watch)| SaveRequest {
        attempt,
        id,
        reason,
        deadline,
        watch,
    })
}

fn from_agent() -> impl Strategy<Value = FromAgent> {
    let attempt = || 1..=u64::MAX;
    prop_oneof![
        any::<u16>().prop_map(|version| FromAgent::Welcome { version }),
        attempt().prop_map(|attempt| FromAgent::Hold { attempt }),
        (
            attempt(),
            option::of(coordinators()),
            any::<u32>(),
            option::of(any::<u32>()),
            text(),
            option::of(limits()),
            option::of(save_policy()),
        )
            .prop_map(
                |(attempt, coordinator, world, rank, peers, progress, checkpoint)| {
                    FromAgent::Release(Release {
                        attempt,
                        coordinator,
                        world,
                        rank,
                        peers,
                        progress,
                        checkpoint,
                    })
                }
            ),
        attempt().prop_map(|attempt| FromAgent::Complete { attempt }),
        attempt().prop_map(|attempt| FromAgent::Exit { attempt }),
        attempt().prop_map(|attempt| FromAgent::Stop { attempt }),
        request().prop_map(FromAgent::Checkpoint),
    ]
}

/// Feeds the bytes to a reader in chunks of these sizes, cyclically. Returns the frames and the
/// error, if any.
fn read<M: Message>(bytes: &[u8], pieces: &[usize]) -> (Vec<M>, Option<FrameError>) {
    let mut reader = FrameReader::default();
    let mut frames = Vec::new();
    let mut rest = bytes;
    for piece in pieces.iter().cycle() {
        let (head, tail) = rest.split_at(rest.len().min(*piece));
        reader.push(head);
        rest = tail;
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
        if rest.is_empty() {
            break;
        }
    }
    (frames, None)
}

/// Messages survive encoding and decoding for any chunk sizes.
fn round_trip<M: Message + PartialEq + Debug>(
    messages: &[M],
    pieces: &[usize],
) -> Result<(), TestCaseError> {
    let bytes: Vec<u8> = messages.iter().flat_map(Message::encode).collect();
    let (frames, error) = read::<M>(&bytes, pieces);
    prop_assert_eq!((&frames[..], error), (messages, None));
    Ok(())
}

/// Arbitrary bytes give frames or an error, without a panic.
fn harmless<M: Message>(bytes: &[u8], pieces: &[usize]) -> Result<(), TestCaseError> {
    let (frames, _) = read::<M>(bytes, pieces);
    prop_assert!(
        frames.len() * 5 <= bytes.len(),
        "a frame has at least five bytes"
    );
    Ok(())
}

proptest! {
    #[test]
    fn what_the_supervisor_says_survives_the_way(m in vec(from_supervisor(), 1..5), pieces in vec(1usize..5000, 1..5)) {
        round_trip(&m, &pieces)?;
    }

    #[test]
    fn what_the_agent_says_survives_the_way(m in vec(from_agent(), 1..5), pieces in vec(1usize..5000, 1..5)) {
        round_trip(&m, &pieces)?;
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..300), pieces in vec(1usize..50, 1..4)) {
        harmless::<FromAgent>(&bytes, &pieces)?;
        harmless::<FromSupervisor>(&bytes, &pieces)?;
    }

    /// Valid lengths and kinds with arbitrary fields reach the field decoders.
    #[test]
    fn arbitrary_fields_do_no_harm(kind in 0u8..80, fields in vec(any::<u8>(), 0..120), pieces in vec(1usize..50, 1..4)) {
        let mut bytes = (1 + fields.len() as u32).to_be_bytes().to_vec();
        bytes.push(kind);
        bytes.extend(fields);
        harmless::<FromAgent>(&bytes, &pieces)?;
        harmless::<FromSupervisor>(&bytes, &pieces)?;
    }

    #[test]
    fn a_damaged_frame_does_no_harm(m in from_agent(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut bytes = m.encode();
        let at = at.index(bytes.len());
        bytes[at] = to;
        harmless::<FromAgent>(&bytes, &[7])?;
    }

    #[test]
    fn a_frame_that_is_cut_short_is_no_frame(m in from_agent(), cut in any::<prop::sample::Index>()) {
        let whole = m.encode();
        let bytes = &whole[..cut.index(whole.len())];
        let (frames, error) = read::<FromAgent>(bytes, &[bytes.len().max(1)]);
        prop_assert_eq!((frames.len(), error), (0, None), "its end may still come");
    }
}

fn error_of<M: Message>(bytes: &[u8]) -> Option<FrameError> {
    read::<M>(bytes, &[bytes.len()]).1
}

#[test]
fn the_longest_messages_fit_into_a_frame() {
    let longest = Release {
        attempt: u64::MAX,
        coordinator: Some(Rendezvous {
            ip: IpAddr::from([0xff_u16; 8]),
            port: u16::MAX,
        }),
        world: u32::MAX,
        rank: Some(u32::MAX),
        peers: Text::cut("x".repeat(100_000)),
        progress: Some(ProgressLimits {
            timeout_seconds: u32::MAX,
            startup_seconds: u32::MAX,
        }),
        checkpoint: Some(SavePolicy {
            signal: Some(u8::MAX),
            timeout_seconds: u32::MAX,
            hold_stop_seconds: u32::MAX,
        }),
    };
    let frame = FromAgent::Release(longest).encode();
    assert!(frame.len() - 4 <= MAX_BODY, "{}", frame.len());
    assert_eq!(error_of::<FromAgent>(&frame), None);
}

#[test]
fn a_length_beyond_the_limit_is_refused_before_its_bytes_arrive() {
    assert_eq!(
        error_of::<FromAgent>(&u32::MAX.to_be_bytes()),
        Some(FrameError::Length(u32::MAX))
    );
    assert_eq!(error_of::<FromAgent>(&[0; 4]), Some(FrameError::Length(0)));
    let over = MAX_BODY as u32 + 1;
    assert_eq!(
        error_of::<FromAgent>(&over.to_be_bytes()),
        Some(FrameError::Length(over))
    );
}

#[test]
fn a_reader_that_has_failed_reads_nothing_more() {
    let mut reader = FrameReader::default();
    reader.push(&[0; 4]);
    assert_eq!(reader.next_frame::<FromAgent>(), Err(FrameError::Length(0)));
    reader.push(&FromAgent::Hold { attempt: 1 }.encode());
    assert_eq!(reader.next_frame::<FromAgent>(), Err(FrameError::Length(0)));
}

fn frame(kind: u8, fields: &[u8]) -> Vec<u8> {
    let mut bytes = (1 + fields.len() as u32).to_be_bytes().to_vec();
    bytes.push(kind);
    bytes.extend(fields);
    bytes
}

#[test]
fn wrong_fields_are_named() {
    const HOLD: u8 = 65;
    const SURVIVORS: u8 = 5;
    // Attempt 1 and a count of 1, before the text.
    let survivors = |text: &[u8]| {
        let fields = [&1_u64.to_be_bytes()[..], &1_u32.to_be_bytes(), text].concat();
        error_of::<FromSupervisor>(&frame(SURVIVORS, &fields))
    };
    assert_eq!(
        error_of::<FromAgent>(&frame(HOLD, &[0; 8])),
        Some(FrameError::Value("attempt")),
        "attempts begin at 1"
    );
    assert_eq!(
        error_of::<FromAgent>(&frame(HOLD, &[1; 7])),
        Some(FrameError::Short)
    );
    assert_eq!(
        error_of::<FromAgent>(&frame(HOLD, &[1; 9])),
        Some(FrameError::Trailing)
    );
    assert_eq!(survivors(&[0, 1, 0xff]), Some(FrameError::Utf8));
    let long = [&1025_u16.to_be_bytes()[..], &[b'x'; 1025]].concat();
    assert_eq!(survivors(&long), Some(FrameError::TextTooLong(1025)));
    assert_eq!(
        error_of::<FromSupervisor>(&frame(HOLD, &[1; 8])),
        Some(FrameError::Kind(HOLD)),
        "wrong direction"
    );
}

#[test]
fn first_frames_of_later_versions_are_understood() {
    let mut hello = FromSupervisor::Hello {
        versions: VERSIONS,
        pod_uid: Text::default(),
        start_id: 7,
    }
    .encode();
    let mut welcome = FromAgent::Welcome { version: 1 }.encode();
    for bytes in [&mut hello, &mut welcome] {
        bytes.extend(b"more");
        bytes[3] += 4;
    }
    let (hellos, error) = read::<FromSupervisor>(&hello, &[hello.len()]);
    assert!(matches!(hellos[..], [FromSupervisor::Hello { start_id: 7, .. }]) && error.is_none());
    let (welcomes, error) = read::<FromAgent>(&welcome, &[welcome.len()]);
    assert!(matches!(welcomes[..], [FromAgent::Welcome { version: 1 }]) && error.is_none());
}

#[test]
fn a_connection_of_version_1_has_no_words_of_progress() {
    let progress = |words: &str| {
        FromSupervisor::Progress(Progress {
            attempt: 1,
            step: 7,
            step_time: 1_000_000,
            checkpoint: None,
            words: Text::cut(words),
        })
    };
    let (all, bare) = (progress("loss=1"), progress(""));
    let received = |bytes: &[u8]| read::<FromSupervisor>(bytes, &[bytes.len()]);
    assert_eq!(
        received(&all.encode_for(2).unwrap()),
        (vec![all.clone()], None)
    );
    let frame = all.encode_for(1).unwrap();
    assert_eq!(received(&frame), (vec![bare], None));
    // Length, kind, attempt, step, its time and no checkpoint: every byte of version 1.
    assert_eq!(frame.len(), 4 + 1 + 8 + 8 + 8 + 1);
}

proptest! {
    /// Messages that version 2 added are not sent, and others have no new fields.
    #[test]
    fn a_connection_of_version_1_has_no_requests_for_checkpoints(m in from_agent()) {
        let new = matches!(m, FromAgent::Checkpoint(_) | FromAgent::Stop { .. });
        prop_assert_eq!(m.encode_for(1).is_none(), new);
        prop_assert_eq!(m.encode_for(2), Some(m.encode()));
        if let FromAgent::Release(release) = &m {
            let bare = FromAgent::Release(Release { checkpoint: None, ..release.clone() });
            prop_assert_eq!(m.encode_for(1), Some(bare.encode()));
        }
    }
}
