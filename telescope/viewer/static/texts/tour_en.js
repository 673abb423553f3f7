// English: the words of tour.

export const tourEn = {};
