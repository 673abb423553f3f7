// English: the words of samples.

export const samplesEn = {};
