use roman::numeral;

#[test]
fn known_years() {
    assert_eq!(numeral(1666).as_deref(), Some("MDCLXVI"));
    assert_eq!(numeral(1994).as_deref(), Some("MCMXCIV"));
}

#[test]
fn the_edges() {
    assert_eq!(numeral(0), None);
    assert_eq!(numeral(3999).as_deref(), Some("MMMCMXCIX"));
    assert_eq!(numeral(4000), None);
}
