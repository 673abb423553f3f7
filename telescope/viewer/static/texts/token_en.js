// English: the words of token.

export const tokenEn = {};
