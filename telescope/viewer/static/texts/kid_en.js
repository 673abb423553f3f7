// What English says to a child instead: no Greek letters, no symbols.

export const kidEn = {};
