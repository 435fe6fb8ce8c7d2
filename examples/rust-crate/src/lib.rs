//! Roman numerals.

const DIGITS: [(u32, &str); 13] = [
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"),
    (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
];

/// The numeral of 1 to 3999; nothing for any other number.
pub fn numeral(mut number: u32) -> Option<String> {
    if !(1..=3999).contains(&number) {
        return None;
    }
    let mut text = String::new();
    for (value, digit) in DIGITS {
        while number >= value {
            text.push_str(digit);
            number -= value;
        }
    }
    Some(text)
}
