// English: the words of compare.

export const compareEn = {};
