use std::fs;
use std::path::PathBuf;

use lockstep_node::Record;

use super::*;
use crate::store::FileStore;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("lockstep-agent-{}-{name}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn records(attempt: i64) -> Records {
    let seen_at = start_time();
    let record = Record {
        container_id: "c".into(),
        restarts: 1,
        attempt,
        seen_at,
        stopping_since: None,
        exited_at: None,
        cleared_for: Some(3),
        arrived: false,
        told_end: None,
        called: None,
    };
    Records {
        pods: [("p".to_owned(), record)].into(),
        reports: Vec::new(),
        others: [("p".to_owned(), [("log".to_owned(), "l".to_owned())].into())].into(),
    }
}

#[tokio::test]
async fn what_was_saved_last_is_loaded_and_nothing_at_first() {
    let folder = Folder::new("saved");
    let store = FileStore::new(&folder.0, None);
    assert_eq!(store.load().await.unwrap(), None);
    store.save(&records(1)).await.unwrap();
    store.save(&records(2)).await.unwrap();
    assert_eq!(
        FileStore::new(&folder.0, None).load().await.unwrap(),
        Some(records(2))
    );
}

#[tokio::test]
async fn records_of_an_earlier_version_are_moved_from_the_disk_once() {
    let (folder, former) = (Folder::new("new"), Folder::new("former"));
    let old = FileStore::new(&former.0, None);
    old.save(&records(1)).await.unwrap();
    let store = FileStore::new(&folder.0, Some(&former.0));
    assert_eq!(store.load().await.unwrap(), Some(records(1)));
    assert_eq!(old.load().await.unwrap(), None, "left behind on the disk");
    assert_eq!(store.load().await.unwrap(), Some(records(1)));

    // Records that an agent of the earlier version leaves later are not newer.
    store.save(&records(2)).await.unwrap();
    old.save(&records(1)).await.unwrap();
    assert_eq!(store.load().await.unwrap(), Some(records(2)));
}

#[tokio::test]
async fn a_crash_in_the_middle_of_a_save_leaves_what_was_there() {
    let folder = Folder::new("crash");
    let store = FileStore::new(&folder.0, None);
    store.save(&records(1)).await.unwrap();
    fs::write(folder.0.join("records.json.new"), "{\"pods\":").unwrap();
    assert_eq!(store.load().await.unwrap(), Some(records(1)));
}

#[tokio::test]
async fn a_damaged_file_is_an_error_that_names_it() {
    let folder = Folder::new("damaged");
    fs::create_dir_all(&folder.0).unwrap();
    fs::write(folder.0.join("records.json"), "{").unwrap();
    let error = FileStore::new(&folder.0, None).load().await.unwrap_err();
    assert!(error.to_string().contains("records.json"), "{error}");
}
