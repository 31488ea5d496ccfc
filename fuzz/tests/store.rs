//! What the store reads back from its disk: as it lies there, and with checksums that agree with the damage, so that the
//! decoding behind them is reached too.

use moorline_fuzz::{Draft, target};
use moorline_store::{
    Attributes, Key, List, Resource, Scope, Store, Value,
    disk::{Committing, Damage, DiskOptions, Files as _, SimulatedDisk},
};

fn options(damage: Damage) -> DiskOptions {
    DiskOptions {
        damage,
        committing: Committing::OnCallersThread,
        ..DiskOptions::default()
    }
}

fn describe(_: &Key, _: &[u8]) -> Attributes {
    Attributes::default()
}

/// A disk with a store that has been written to, and the names of its files.
fn written() -> (SimulatedDisk, Vec<String>) {
    let disk = SimulatedDisk::new(1);
    let (store, _) = Store::open(disk.clone(), options(Damage::Refuse), describe).expect("an empty disk opens");
    let secrets = Resource::new("secrets");
    for number in 0..5 {
        let key = Key::new(&secrets, "default", format!("s{number}"));
        let value = Value::new(format!("value {number}"));
        store.create(key, value).wait().expect("the disk takes it");
    }
    let gone = Key::new(&secrets, "default", "s1");
    store.delete(gone).wait().expect("it is there");
    store.close();
    drop(store);
    let names = disk.names().expect("the disk is up");
    (disk, names)
}

/// Opens what is left, and reads all that it offers.
fn open(disk: &SimulatedDisk) {
    for damage in [Damage::Refuse, Damage::KeepWhatComesBefore] {
        if let Ok((store, _)) = Store::open(disk.clone(), options(damage), describe) {
            let all = List::all(Scope::Resource(Resource::new("secrets")));
            let records = store.list(&all).map(|page| page.records).unwrap_or_default();
            assert!(records.iter().all(|record| record.value().len() < 1 << 20));
            store.close();
        }
    }
}

#[test]
fn files_of_a_store() {
    target!(|draft| {
        let (disk, names) = written();
        for name in &names {
            disk.tamper(name, |bytes| *bytes = draft.of(&[bytes.as_slice()]));
        }
        open(&disk);
    });
}

#[test]
fn records_of_a_log_under_a_good_checksum() {
    target!(|draft| {
        let (disk, names) = written();
        for name in &names {
            disk.tamper(name, |bytes| damage_the_first_payload(bytes, draft));
        }
        open(&disk);
    });
}

/// `magic 4 │ length 4 │ revision 8 │ count 4 │ crc of payload 4 │ crc of these 4 │ payload`, as in the store's frames.
fn damage_the_first_payload(file: &mut Vec<u8>, draft: &Draft) {
    const HEAD: usize = 28;
    let Some(start) = file.windows(4).position(|window| window == b"mFr1") else {
        return;
    };
    let length = u32::from_le_bytes(file[start + 4..start + 8].try_into().expect("four bytes"));
    let end = start + HEAD + usize::try_from(length).expect("a frame fits into memory");
    let payload = draft.of(&[&file[start + HEAD..end]]);
    let mut head = file[start..start + HEAD].to_vec();
    head[4..8].copy_from_slice(&u32::try_from(payload.len()).expect("drafts are short").to_le_bytes());
    head[20..24].copy_from_slice(&crc32c::crc32c(&payload).to_le_bytes());
    let guard = crc32c::crc32c(&head[..24]);
    head[24..28].copy_from_slice(&guard.to_le_bytes());
    file.splice(start..end, head.into_iter().chain(payload));
}
