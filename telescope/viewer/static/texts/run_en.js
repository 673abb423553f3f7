// English: the words of run.

export const runEn = {};
